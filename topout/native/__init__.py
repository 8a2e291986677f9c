"""C sources for what Python cannot do fast enough, and how they are compiled. `native.bindings` calls them.

Not needed to run: every function has a twin in Python that gives the same results.
"""
