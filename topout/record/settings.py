"""What the launcher asks of a rank's recorder, handed over in the environment."""

from __future__ import annotations

import os

from topout.schema.light_dataclass import dataclass
from topout.schema.light_json import loads

RUN_VARIABLE = "TOPOUT_RUN"
SETTINGS_VARIABLE = "TOPOUT_RECORD"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One rank's orders."""

    run: str | None = None
    """The run folder."""
    rank: int = 0
    world_size: int = 1
    record: bool = True
    steps: int | None = None
    data_share: float | None = None
    batch: int | None = None
    """Of a rank, for the loaders that feed training."""
    onednn_backward: bool = True
    keep_memory: bool = False
    profile: tuple[int, int] | None = None
    filter: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls) -> Settings:
        run = os.environ.get(RUN_VARIABLE)
        asked = loads(os.environ.get(SETTINGS_VARIABLE, "{}"))
        profile = asked.get("profile")
        return cls(
            run=run or None,
            rank=int(os.environ.get("RANK", "0")),
            world_size=int(os.environ.get("WORLD_SIZE", "1")),
            record=bool(asked.get("record", True)),
            steps=asked.get("steps"),
            data_share=asked.get("data_share"),
            batch=asked.get("batch"),
            onednn_backward=bool(asked.get("onednn_backward", True)),
            keep_memory=bool(asked.get("keep_memory", False)),
            profile=(profile[0], profile[1]) if profile else None,
            filter=tuple(asked.get("filter") or ()),
        )

    def leaves_out(self, name: str) -> bool:
        """Whether `--filter` asks to leave out what bears this name."""
        if not self.filter:
            return False
        from fnmatch import fnmatchcase

        return any(fnmatchcase(name, pattern) for pattern in self.filter)
