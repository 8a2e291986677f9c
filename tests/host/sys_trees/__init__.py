"""Machines as files: what /sys and /proc say there, planted into a folder.

A path or a content may hold a set in braces, `cpu{0-3}` or `{0,0,1,1}`: one file for each member of the path's set,
with the contents' members at the same place. Recorded ones are made by `record.py`; each file says in `about` whether
it was recorded or modelled from documentation.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from topout.host.topology import parse_cpu_list

FOLDER = Path(__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
_SET = re.compile(r"\{([^{}]*)\}")


def plant(name: str, folder: Path) -> tuple[Path, Path]:
    """The roots of /sys and /proc of that machine."""
    for path, text in json.loads((FOLDER / f"{name}.json").read_text())["files"].items():
        for one_path, one_text in expand(path, text):
            place = folder / one_path
            if one_path.endswith("/"):
                place.mkdir(parents=True, exist_ok=True)
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(one_text)
    return folder / "sys", folder / "proc"


def expand(path: str, text: str) -> Iterator[tuple[str, str]]:
    if not (in_path := _SET.search(path)):
        yield path, text
        return
    members = _members(in_path[1])
    in_text = {match[0]: _members(match[1]) for match in _SET.finditer(text)}
    assert all(len(found) == len(members) for found in in_text.values()), path
    for place, member in enumerate(members):
        one_text = text
        for braces, found in in_text.items():
            one_text = one_text.replace(braces, found[place])
        yield path.replace(in_path[0], member), one_text


def _members(text: str) -> list[str]:
    try:
        return [str(number) for number in parse_cpu_list(text)]
    except ValueError:
        return text.split(",")
