"""Optimizers that still learn at large batches, the rules that size their rate, and its schedule."""
