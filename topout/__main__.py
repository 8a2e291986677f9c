"""`python -m topout`, for when the command itself is not on the path."""

from topout.cli.main import main

main()
