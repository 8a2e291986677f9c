"""Variables with which an OpenMP library narrows a whole process to one core, loader workers included.

Not an error: a script without workers may profit from them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


TRAPS = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""Variables with which an OpenMP library narrows a process to one core."""
_HARMLESS = ("", "false", "none", "disabled")


def traps_set(environ: Mapping[str, str]) -> dict[str, str]:
    """Those of the variables that are set and not switched off."""
    return {name: environ[name] for name in TRAPS if environ.get(name, "").lower() not in _HARMLESS}
