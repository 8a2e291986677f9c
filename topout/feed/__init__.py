"""Samples in few large files, and the loader that keeps a device busy from them.

Not for data that fits in memory as one array: a tensor indexed there needs no file at all.
"""
