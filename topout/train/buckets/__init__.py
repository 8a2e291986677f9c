"""Gradients averaged in groups that overlap backward, with the groups chosen by measurement."""
