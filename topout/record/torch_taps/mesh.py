"""Notes which process group is which dimension of a device mesh: `tp`, `dp`, whatever the script calls it.

A group's own description says it, too, except where a mesh of one dimension takes the default group. Not for groups
that a script makes itself with `new_group`: they have no name that means anything.
"""

import functools
import sys
from types import ModuleType
from typing import Any

from topout.record.recorder import Recorder


def install(module: ModuleType, recorder: Recorder) -> None:
    mesh = getattr(module, "DeviceMesh", None)
    if not isinstance(mesh, type):  # torch without distributed has a stub here
        return
    original: Any = mesh.__init__  # type: ignore[misc]
    known: dict[str, dict[str, Any]] = {}

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        recorder.guard(_note_groups, self, known, recorder)

    setattr(mesh, "__init__", init)  # noqa: B010


def _note_groups(mesh: Any, known: dict[str, dict[str, Any]], recorder: Recorder) -> None:
    names = getattr(mesh, "mesh_dim_names", None)
    # slices of a mesh begin without groups, and a rank outside the mesh is in none of them
    if not names or len(getattr(mesh, "_dim_group_names", ())) != len(names):
        return
    distributed = sys.modules["torch"].distributed
    for dimension, name in enumerate(names):
        group = mesh.get_group(dimension)
        if group.group_name not in known:
            known[group.group_name] = {"name": str(name), "ranks": distributed.get_process_group_ranks(group)}
    if recorder.known("mesh_groups") != known:
        recorder.fact(mesh_groups=dict(known))
