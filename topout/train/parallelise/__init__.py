"""`topout run --ddp`: a script for one device becomes data-parallel without an edit (docs/ddp.md).

Inside a rank, and only where it was asked for. Not for a script that one may edit: `topout.init()` is three lines, and
says in the script what happens.
"""
