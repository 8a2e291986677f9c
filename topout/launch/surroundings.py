"""What a run was made with: versions of the frameworks, and the commit of the script's repository.

Read from the names of folders and from git's own files, in a millisecond: `importlib.metadata` loads a mail parser, and
git takes a process. Only what these do not tell is asked of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from topout import __version__
from topout.host.kernel_files import names_in, read_text

# texts: whoever ends a job of a second does not wait for `pathlib`
# ruff: noqa: PTH100, PTH110, PTH112, PTH118, PTH120

_FRAMEWORKS = {
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "tensorflow_cpu", "tensorflow_rocm"),
    "keras": ("keras",),
    "jax": ("jax",),
}
"""Package -> names under which it is distributed."""
_LONGEST_ANSWER_S = 1.0


def versions() -> dict[str, str | None]:
    found = {name: _installed(name, distributions) for name, distributions in _FRAMEWORKS.items()}
    known = {name: version for name, version in found.items() if version is not None or name == "torch"}
    return {"python": sys.version.split()[0], "topout": __version__, **known}


def _installed(package: str, distributions: Sequence[str]) -> str | None:
    """The version that the first place on the path has of it, as pip writes it into the name of a folder."""
    is_there = False
    for place in sys.path:
        for name in _listed(place or "."):
            stem, _, kind = name.rpartition(".")
            distribution, _, version = stem.partition("-")
            if kind == "dist-info" and distribution.lower() in distributions and version:
                return version
            is_there |= name == package
    return _asked(package) if is_there else None


_lists: dict[str, list[str]] = {}


def _listed(place: str) -> list[str]:
    if place not in _lists:
        _lists[place] = names_in(place)
    return _lists[place]


def _asked(package: str) -> str | None:
    """Of a package that lies there without such a folder, as a checkout does."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git_commit(folder: str) -> str | None:
    """Of the repository around the folder; None outside one, or when git takes long."""
    above = os.path.abspath(folder)
    while not os.path.exists(os.path.join(above, ".git")):
        if above == (above := os.path.dirname(above)):
            return None
    return _head(os.path.join(above, ".git")) or _ask_git(folder)


def _head(git: str) -> str | None:
    """A commit, as HEAD or the branch that it names says; None for whatever is not written so plainly."""
    if not os.path.isdir(git):
        return None
    text = read_text(f"{git}/HEAD").strip()
    if text.startswith("ref: "):
        text = read_text(f"{git}/{text.removeprefix('ref: ')}").strip()
    is_commit = len(text) in (40, 64) and all(digit in "0123456789abcdef" for digit in text)
    return text if is_commit else None


def _ask_git(folder: str) -> str | None:
    import subprocess

    try:
        answer = subprocess.run(
            ["git", "-C", folder, "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LONGEST_ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
