"""Where threads are, read from their Python frames: the script's own line, the innermost one, and the phase.

Looks from another thread, so that the watched one pays nothing. Frames are read and let go at once, within one turn of
the interpreter lock: a frame that is held keeps its variables, tensors among them, alive. C frames are not seen.
"""

# paths are texts here: a rank that starts does not wait for `pathlib`
# ruff: noqa: PTH119, PTH120

from __future__ import annotations

import os
import sys

from topout.schema.light_dataclass import dataclass
from topout.schema.remembered import remembered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

_RECORD = os.path.dirname(os.path.realpath(__file__))
_PACKAGE = os.path.dirname(_RECORD) + os.sep
_RECIPES = _PACKAGE + "recipes"
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_INSTALLED = ("/site-packages/", "/dist-packages/")
_MOST_FRAMES = 200

_PHASES = {
    ("torch_taps/loader.py", "next_batch"): "input",
    ("torch_taps/loader.py", "iterate"): "input",
    ("torch_taps/backward.py", "backward"): "backward",
    ("torch_taps/collectives.py", "collective"): "collective",
    ("torch_taps/checkpoint.py", "save"): "checkpoint",
    ("distributed/distributed_c10d.py", "init_process_group"): "init",
    ("_src/distributed.py", "initialize"): "init",  # JAX
    ("_dynamo/convert_frame.py", ""): "compile",
    ("_inductor/compile_fx.py", ""): "compile",
    ("_src/compiler.py", ""): "compile",  # JAX
}
"""(last two parts of a file's path, function or any) -> phase of a stack that holds it; the innermost counts."""


@dataclass(frozen=True)
class Line:
    """One frame of a stack."""

    path: str
    number: int
    function: str

    def __str__(self) -> str:
        return f"{shown(self.path)}:{self.number} in {self.function}"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where one thread is. Empty texts: it runs no Python, or none of the script's."""

    phase: str = ""
    line: str = ""
    inner: str = ""
    """Empty when the innermost line is the script's own."""


def place_of(thread: int) -> Place:
    stack = _lines(sys._current_frames().get(thread))
    own = next((line for line in stack if is_script(line.path)), None)
    outside = next((line for line in stack if not line.path.startswith(_RECORD)), None)
    return Place(
        phase=next((phase for line in stack if (phase := _phase(line.path, line.function))), ""),
        line=str(own) if own else "",
        inner=str(outside) if outside and outside != own else "",
    )


def stacks() -> dict[int, list[Line]]:
    """Each thread's stack, innermost first, without topout's own frames and those that started the script."""
    found = {thread: _lines(frame) for thread, frame in sys._current_frames().items()}
    return {
        thread: [line for line in stack if not line.path.startswith((_RECORD, "<frozen runpy"))]
        for thread, stack in found.items()
    }


def thread_names() -> dict[int, str]:
    """Empty where the script has not loaded `threading`, which takes the thread that loads it for the main one."""
    enumerate_threads = getattr(sys.modules.get("threading"), "enumerate", tuple)
    return {thread.ident: thread.name for thread in enumerate_threads() if thread.ident is not None}


@remembered
def is_script(path: str) -> bool:
    """Code of the script and of what lies beside it: neither Python's library, nor installed, nor topout's own."""
    if path.startswith(("<", _LIBRARY)) or any(part in path for part in _INSTALLED):
        return False
    return not path.startswith(_PACKAGE) or path.startswith(_RECIPES)


@remembered
def shown(path: str) -> str:
    """A path as a person knows it: from the package on, from the current folder on, else its name."""
    for part in _INSTALLED:
        if part in path:
            return path.rpartition(part)[2]
    if path.startswith(("<", _LIBRARY)):
        return path.removeprefix(_LIBRARY)
    try:
        beside = os.path.relpath(path)
    except (OSError, ValueError):
        return os.path.basename(path)
    return os.path.basename(path) if beside.startswith("..") else beside


@remembered
def _phase(path: str, function: str) -> str:
    if path.startswith("<frozen importlib"):
        return "import"
    ending = "/".join(path.split("/")[-2:])
    return _PHASES.get((ending, function)) or _PHASES.get((ending, "")) or ""


def _lines(frame: FrameType | None) -> list[Line]:
    found: list[Line] = []
    while frame is not None and len(found) < _MOST_FRAMES:
        code = frame.f_code
        found.append(Line(code.co_filename, frame.f_lineno or 0, code.co_name))
        frame = frame.f_back
    return found
