"""What is to be run: a script or a module, looked for before anything is started or written.

Not a check of what is in it; a script that does not compile says so itself, with its own traceback.
"""

# paths are texts where nothing is wrong: `pathlib` takes longer to load than this to look
# ruff: noqa: PTH109, PTH113, PTH120

from __future__ import annotations

import os
import sys

import topout
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.light_dataclass import replace
from topout.schema.spec import RunSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_RANKS = 2
"""Of the embedded default, which exists to show what several ranks look like."""

_OF_THIS_PROCESS = ("/dev/stdin", "/dev/fd/", "/proc/self/")
"""Names that mean another file in every rank."""


def with_target(spec: RunSpec) -> RunSpec:
    """The spec with its script checked, or the embedded default in its place."""
    if spec.script is None:
        if spec.is_module:
            raise TopoutError("-m needs a module's name.", why="nothing follows it", do="topout run -m package.train")
        _check_torch()
        recipe = f"{os.path.dirname(topout.__file__)}/recipes/digits.py"
        if spec.num_ranks is None and spec.per_node is None:
            spec = replace(spec, num_ranks=DEFAULT_RANKS, origins={**spec.origins, "num_ranks": "embedded default"})
        return replace(spec, script=recipe, origins={**spec.origins, "script": "embedded default"})
    if spec.is_module:
        _check_module(spec.script)
    else:
        _check_script(spec.script)
    return spec


def rank_words(spec: RunSpec) -> list[str]:
    """What a rank is told to run."""
    assert spec.script is not None
    return [*(["-m"] if spec.is_module else []), spec.script, *spec.args]


def rank_command(spec: RunSpec) -> list[str]:
    return [sys.executable, "-P", "-m", "topout.record.rank", *rank_words(spec)]


def _check_torch() -> None:
    """The embedded default trains; whether torch is there can be told without importing it."""
    from importlib.util import find_spec

    try:
        is_there = find_spec("torch") is not None
    except ImportError:
        is_there = False
    if not is_there:
        raise TopoutError(
            "The embedded default cannot run without torch.",
            why=f"{sys.executable} has no torch installed",
            do="pip install 'topout[torch]', or run a script of your own: topout run train.py",
            exit_code=ExitCode.ENVIRONMENT,
        )


def _check_script(name: str) -> None:
    is_of_this_process = name.startswith(_OF_THIS_PROCESS)
    if os.path.isfile(name) and os.access(name, os.R_OK) and not is_of_this_process:
        return
    from pathlib import Path
    from shlex import quote

    script = Path(name)
    if script.is_dir():
        inside = sorted(path.name for path in script.glob("*.py"))
        raise TopoutError(
            f"{script} is a folder, not a script.",
            why="a run needs one file to start",
            do=f"topout run {quote(str(script / inside[0]))}" if inside else "name the script inside it",
        )
    if not script.exists():
        raise TopoutError(
            f"There is no script {script}.",
            why="no such file" if script.parent.is_dir() else f"there is no folder {script.parent}",
            do=_nearest(script),
        )
    if not script.is_file() or is_of_this_process:
        raise TopoutError(
            f"{script} is not a file that every rank can read.",
            why="a pipe or a device gives its text once, and ranks open the script by its name",
            do="write it to a file, then: topout run FILE.py",
        )
    if not os.access(script, os.R_OK):
        raise TopoutError(f"{script} cannot be read.", why="its permissions forbid it", do=f"chmod u+r {quote(name)}")


def _nearest(script: Path) -> str:
    from difflib import get_close_matches

    try:
        names = [path.name for path in script.parent.iterdir() if path.is_file()]
    except OSError:
        names = []
    near = get_close_matches(script.name, names, n=1, cutoff=0.5)
    if near:
        return f"did you mean {script.parent / near[0]}?"
    if not script.suffix and (script.name.isidentifier() or "." in script.name):
        return f"pass the path of a Python script, or -m {script.name} for a module"
    return "pass the path of a Python script; options of topout stand before it"


def _check_module(name: str) -> None:
    from importlib.machinery import PathFinder

    top = name.partition(".")[0]
    try:
        found = PathFinder.find_spec(top, [os.getcwd(), *sys.path])
    except (ImportError, ValueError):
        found = None
    if found is None and top not in sys.builtin_module_names:
        raise TopoutError(
            f"There is no module {name}.",
            why=f"{top} is neither in the current folder nor installed in {sys.prefix}",
            do=f"topout run {name} without -m, for a script"
            if name.endswith(".py")
            else "check its name, or install it",
        )
