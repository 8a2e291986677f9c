"""Lets `import horovod` find topout's face of it in a rank where no working Horovod is installed (docs/horovod.md).

By a folder on `sys.path`, which spawned loader workers inherit. A Horovod whose torch part was built is left alone; one
without it, as pip installs it today, is stepped over. Loads nothing: a script without Horovod never notices.
"""

from __future__ import annotations

import os
import sys

FACE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "train", "horovod", "face")  # noqa: PTH118, PTH120
_TORCH_PART = "mpi_lib_v2"


def install() -> None:
    for place, folder in enumerate(sys.path):
        package = f"{folder or '.'}/horovod"
        if os.path.isfile(f"{package}/__init__.py"):  # noqa: PTH113
            if not _is_built(f"{package}/torch"):
                sys.path.insert(place, FACE)
            return
    sys.path.append(FACE)


def _is_built(folder: str) -> bool:
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError:
        return False
    return any(name.startswith(_TORCH_PART) and name.endswith((".so", ".dylib")) for name in names)
