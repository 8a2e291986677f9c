"""Any data set as a pack, and back: the format, its readers and writers, and the formats of others.

Not for training loops: `feed` makes batches out of packs.
"""
