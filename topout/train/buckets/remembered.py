"""Choices of earlier runs: for the same model, the same number of ranks and the same link nothing is tried again.

One small JSON file for each, in the user's cache folder, written whole. Whatever cannot be read is as if it were not
there: it costs 50 steps of trying.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from topout.schema.run_folder import write_whole
from topout.train.buckets.grouping import Gradient
from topout.train.buckets.regroup import Grouping, are_values, as_values
from topout.train.link import Link

VERSION = 4
"""Of the file, and of what the candidates' names stand for."""
SAME_LINK = 2.0
"""Bandwidths nearer than this factor are of the same link: no two measurements of one are equal."""


class Remembered:
    """`surroundings` is whatever else makes a choice another one: names and shapes, ranks and hosts, versions."""

    def __init__(self, surroundings: str, folder: Path | None = None) -> None:
        self._surroundings = surroundings
        self._folder = folder or cache_folder()
        self._path: Path | None = None
        self._link: Link | None = None

    def find(self, gradients: Sequence[Gradient], link: Link) -> dict[str, Any] | None:
        if self._folder is None:
            return None
        self._path = self._folder / f"{self._key(gradients)}.json"
        self._link = link
        try:
            found = json.loads(self._path.read_text())
            is_usable = (
                found["version"] == VERSION
                and are_values(found)
                and 1 / SAME_LINK < link.bytes_per_s / found["bytes_per_s"] < SAME_LINK
            )
        except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
            return None
        return found if is_usable else None

    def keep(self, grouping: Grouping, gain_share: float) -> None:
        """After `find`, whose file it writes; a full disk or a folder that may not be written is no reason to stop."""
        if self._folder is None or self._path is None or self._link is None:
            return
        value = {
            "version": VERSION,
            **as_values(grouping),
            "gain_share": gain_share,
            "bytes_per_s": self._link.bytes_per_s,
        }
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, json.dumps(value) + "\n")

    def _key(self, gradients: Sequence[Gradient]) -> str:
        parts = [self._surroundings, [gradient.num_bytes for gradient in gradients]]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def cache_folder() -> Path | None:
    """None where the user has no home, as in containers that run under a number."""
    place = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(place) if place else Path.home() / ".cache") / "topout" / "buckets"
    except RuntimeError:
        return None
