"""Readers, one file a format: a recording of any kind becomes tables."""
