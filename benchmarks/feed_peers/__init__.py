"""One file a peer of `benchmarks/feed.py`, and what they share."""
