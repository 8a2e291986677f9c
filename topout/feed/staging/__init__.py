"""Brings what will be read soon from a slow place to a near one, since the order of reading is known.

Not needed where a pack already lies on a disk of the node: open it with `open_pack` there.
"""
