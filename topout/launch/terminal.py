"""Where rank 0's output and the launcher's own talk go: this terminal, or over a wire to whoever has one."""

from __future__ import annotations

import errno
import os

from topout.launch.log_pipe import write_all
from topout.launch.scribe import Scribe
from topout.schema.ignoring import ignoring
from topout.schema.light_dataclass import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Terminal:
    """The file descriptors of a person, or of a log file."""

    out_fd: int = 1
    err_fd: int = 2
    is_quiet: bool = False
    """Silences the launcher's own talk, never a warning and never the script."""
    scribe: Scribe = field(default_factory=Scribe, repr=False)
    """While it is at work, nobody waits for a terminal that somebody stopped."""
    _gone: set[int] = field(default_factory=set, repr=False)

    def say(self, text: str) -> None:
        data = (text.rstrip("\n") + "\n").encode(errors="replace")
        self.scribe.do(lambda: self._say(data), len(data))

    def show(self, stream: int, data: bytes) -> None:
        """Output of rank 0; a terminal that went away is let go."""
        if stream not in self._gone:
            self.scribe.do(lambda: self._show(stream, data), len(data))

    def _say(self, data: bytes) -> None:
        with ignoring(OSError):
            os.write(self.err_fd, data)

    def _show(self, stream: int, data: bytes) -> None:
        try:
            write_all(self.out_fd if stream == 1 else self.err_fd, data)
        except OSError as error:
            self._gone.add(stream)
            if error.errno != errno.EPIPE:
                # nobody has turned away, and what is missing would be taken for all
                name = "stdout" if stream == 1 else "stderr"
                why = error.strerror or str(error)
                self._say(
                    f"topout: {name} takes nothing more ({why}); what rank 0 prints is in its log alone\n".encode()
                )
