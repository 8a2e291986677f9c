"""How many files this process may have open: a launcher takes some for every rank, a pack one or two for every shard.

Many systems let a process have 1,024 unless it asks for more. Where the hard limit does not let it, nothing is said
here: whatever opens one too many says which.
"""

import os

from topout.schema.ignoring import ignoring

_SPARE = 64


def allow_open_files(num_more: int) -> None:
    """Beside those that are open now."""
    soft = most_open_files()
    try:
        num_open = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    except OSError:
        num_open = 0
    needed = num_open + num_more + _SPARE
    if soft < needed:
        # seldom
        import resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with ignoring(ValueError, OSError):
            wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_open_files() -> int:
    """As things stand, with those that are open now."""
    soft = os.sysconf("SC_OPEN_MAX")
    return 1 << 30 if soft < 0 else soft
