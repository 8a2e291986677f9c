"""What happens in a rank, written to the run folder: bounded, never raising, never synchronising a GPU."""
