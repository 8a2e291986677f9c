"""Making packs: a plan, shards written by threads, then index, names and manifest, and all of it put in place at once.

Not for changing a pack: packs are never altered, only written again.
"""
