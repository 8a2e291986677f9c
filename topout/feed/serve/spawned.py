"""Importing this puts the packs in place: the first line of a process that a rank spawned (`workers`).

Fails open: a worker that cannot have the packs reads the folder, or says itself that it is not there.
"""

import contextlib

with contextlib.suppress(Exception):
    from topout.feed.serve.install import install_in_worker

    install_in_worker()
