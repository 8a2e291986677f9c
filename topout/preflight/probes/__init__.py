"""What runs on every host of a doctor run: each probe measures one thing and judges nothing.

The only place in this room where torch may be imported, inside functions, since a host without it is checked too.
"""
