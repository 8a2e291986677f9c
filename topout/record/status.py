"""The rank's line to its launcher: JSON lines on an inherited pipe.

Not a transport for data: a few messages a run. A broken pipe is ignored; a rank never depends on who listens.
"""

from __future__ import annotations

import os

from topout.record.clock import now_ns
from topout.record.held_file import HeldFile
from topout.schema.light_json import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STATUS_FD = "TOPOUT_STATUS_FD"


class StatusLine:
    """Says what the launcher must know: notes, failures, the end."""

    def __init__(self, fd: int | None) -> None:
        self._pipe = HeldFile(fd) if fd is not None else None
        self._pid = os.getpid()
        self.has_told_failure = False

    @classmethod
    def from_environment(cls) -> StatusLine:
        text = os.environ.pop(STATUS_FD, "")
        if not text.isdigit():
            return cls(None)
        # the script's own children must not hold the launcher's pipe open
        try:
            os.set_inheritable(int(text), False)
            return cls(int(text))
        except OSError:
            return cls(None)

    @property
    def is_of_this_process(self) -> bool:
        """Not in a child that the script forks: what becomes of that is the script's affair."""
        return os.getpid() == self._pid

    def send(self, kind: str, **content: Any) -> None:
        self.has_told_failure |= kind == "failure"
        if self._pipe is None or not self.is_of_this_process:
            return
        line = dumps({"kind": kind, "at_ns": now_ns(), **content}) + "\n"
        try:
            self._pipe.write(line.encode())
        except OSError:
            self._pipe = None
