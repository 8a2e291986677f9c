"""How many files this launcher may have open: every rank here and every launcher elsewhere takes some.

Many systems let a process have 1,024 unless it asks for more. Where the hard limit does not let it, nothing is said
here: whatever opens one too many says which.
"""

import contextlib
import os
import resource

_SPARE = 64


def allow_open_files(num_more: int) -> None:
    """Beside those that are open now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        num_open = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    except OSError:
        num_open = 0
    needed = num_open + num_more + _SPARE
    if soft != resource.RLIM_INFINITY and soft < needed:
        with contextlib.suppress(ValueError, OSError):
            wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
