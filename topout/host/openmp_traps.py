"""Variables with which an OpenMP library narrows a whole process to one core, loader workers included.

Not an error: a script without workers may profit from them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


TRAPS = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""Variables with which an OpenMP library narrows a process to one core."""
_HARMLESS = frozenset(("false", "none", "disabled"))
_OF_INTEL = "KMP_AFFINITY"


def traps_set(environ: Mapping[str, str]) -> dict[str, str]:
    """Those of the variables that are set and not switched off, by themselves or by OMP_PROC_BIND=false."""
    is_set = [name for name in TRAPS if environ.get(name, "").strip()]
    found = {name: environ[name] for name in is_set if not _HARMLESS & set(_words(environ[name]))}
    if _words(environ.get("OMP_PROC_BIND", "")) == ["false"]:
        # it switches off OMP_PLACES and GOMP_CPU_AFFINITY, seen with libgomp; Intel's own variable goes before it
        return {name: value for name, value in found.items() if name == _OF_INTEL}
    return found


def _words(value: str) -> list[str]:
    """`granularity=fine,none` binds nothing."""
    return [word.strip().lower() for word in value.split(",")]
