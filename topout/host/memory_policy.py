"""Memory near the cores: asks the kernel to take a rank's pages from the NUMA domains that the rank is bound to.

Preferred, not enforced. MPOL_BIND kills a process whose domain is full while the rest of the machine is empty, and what
a rank caches and pins often exceeds one domain. So: MPOL_PREFERRED_MANY (Linux 5.15), on older kernels MPOL_PREFERRED
for a single domain, else nothing, for bound cores take their own domain's memory first anyway. Containers may forbid
the call; the ranks then run as they would have.
"""

from __future__ import annotations

import os
import sys

from topout.host.c_library import c_function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

MPOL_PREFERRED = 1
MPOL_PREFERRED_MANY = 5
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "ppc64le": 261, "riscv64": 237}
"""Numbers of the system call; the C library has no function for it."""
_MASK_BITS = 1024

# looked up here, not in the call: between fork and exec nothing should be loaded
_SYSTEM_CALL = c_function("syscall")
_NUMBER = _SET_MEMPOLICY.get(os.uname().machine)


def bind_memory(numa: Sequence[int]) -> bool:
    """For this thread and what it starts, over exec too; may be called between fork and exec. True: it is in force."""
    if _SYSTEM_CALL is None or _NUMBER is None or not numa or min(numa) < 0 or max(numa) >= _MASK_BITS:
        return False
    # words of 64 bits, the lowest first, in the byte order of this machine
    bits = sum(1 << domain for domain in set(numa))
    words = [bits >> shift & 0xFFFFFFFFFFFFFFFF for shift in range(0, _MASK_BITS, 64)]
    mask = b"".join([word.to_bytes(8, sys.byteorder) for word in words])
    modes = (MPOL_PREFERRED_MANY, MPOL_PREFERRED) if len(set(numa)) == 1 else (MPOL_PREFERRED_MANY,)
    # the kernel reads one bit less than it is told
    return any(_SYSTEM_CALL(_NUMBER, mode, mask, _MASK_BITS + 1) == 0 for mode in modes)
