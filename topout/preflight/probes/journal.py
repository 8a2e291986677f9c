"""What a probe has found so far, in a file that is always whole, stage by stage.

A stage that fails is noted with its reason and the next one runs. Not a log: only facts stay.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from topout.preflight.facts import Facts
from topout.schema.run_folder import write_whole


class Journal:
    """One host's facts while they grow."""

    def __init__(self, facts: Facts, path: Path | None, *, deadline_s: float, talks: bool) -> None:
        self.facts = facts
        self._path = path
        self._deadline_s = deadline_s
        self._talks = talks

    def stage(self, name: str, probe: Callable[[], Any], note: Callable[[Any], dict[str, Any]]) -> Any:
        """Runs one probe and keeps what it found under the names that `note` gives it; None when it failed."""
        if time.monotonic() > self._deadline_s:
            self.miss(name, "no time was left")
            return None
        if self._talks:
            print(f"  {name} …", file=sys.stderr, flush=True)  # noqa: T201
        # written before the stage runs: should it hang, this file says where
        self.write(stage=name)
        start_s = time.monotonic()
        found = None
        try:
            found = probe()
            self.keep(**note(found))
        except Exception as error:
            first_line = (str(error).splitlines() or [""])[0]
            self.miss(name, f"{type(error).__name__}: {first_line}"[:300])
        self.keep(stage_seconds={**self.facts.stage_seconds, name: round(time.monotonic() - start_s, 3)})
        return found

    def keep(self, **found: Any) -> None:
        self.facts = replace(self.facts, **found)

    def miss(self, name: str, why: str) -> None:
        self.keep(not_measured={**self.facts.not_measured, name: why})

    def write(self, stage: str | None) -> None:
        self.keep(stage=stage)
        if self._path is not None:
            write_whole(self._path, msgspec.json.encode(self.facts))
