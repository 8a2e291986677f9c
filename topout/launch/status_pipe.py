"""What ranks tell the launcher: JSON lines on a pipe, see docs/recording.md.

Not for data; a line that is not understood is dropped, since a rank's recorder may be older or newer than its launcher.
"""

from __future__ import annotations

import os
import time

from topout.schema.light_json import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from topout.launch.outcome import Limits

_LONGEST_LINE_BYTES = 1 << 20


class Told:
    """What one rank has told so far."""

    def __init__(self) -> None:
        self.reported_code: int | None = None
        self.failure: str | None = None
        self.failed_at_ns: int | None = None
        self.must_end_at: float | None = None
        self.may_write_until = 0.0
        self.give_up_at: float | None = None
        """Set with the kill that is sent to it."""
        self.written_bytes: int | None = None
        """When its writing was last looked at."""

    def must_end(self, limits: Limits) -> None:
        """After a traceback the clock already runs."""
        if self.must_end_at is None:
            now = time.monotonic()
            self.must_end_at, self.may_write_until = now + limits.exit_s, now + limits.writing_s

    def give_time(self, limits: Limits) -> bool:
        """It works: its time begins anew, unless it has had all there is."""
        now = time.monotonic()
        if self.must_end_at is None or now >= self.may_write_until:
            return False
        self.must_end_at = now + limits.exit_s
        return True

    def put_off(self, seconds: float) -> None:
        """It was stopped for so long, or the launcher was."""
        self.may_write_until += seconds
        if self.must_end_at is not None:
            self.must_end_at += seconds
        if self.give_up_at is not None:
            self.give_up_at += seconds


class StatusPipe:
    """The launcher's end of one rank's pipe."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.is_open = True
        self._partial = b""

    def read(self) -> list[dict[str, Any]]:
        """Every whole message that has arrived."""
        messages = []
        while self.is_open:
            try:
                data = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self.is_open = bool(data)
            *lines, self._partial = (self._partial + data).split(b"\n")
            messages += [message for line in lines if (message := parse_message(line)) is not None]
            if len(self._partial) > _LONGEST_LINE_BYTES:
                self._partial = b""
        return messages


def parse_message(line: bytes) -> dict[str, Any] | None:
    """None for what is not a JSON object."""
    try:
        message = loads(line)
    except (ValueError, RecursionError):
        # the latter: brackets within brackets, thousands deep
        return None
    return message if isinstance(message, dict) else None
