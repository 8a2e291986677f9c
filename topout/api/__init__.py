"""What a script may import from topout."""
