"""Two ranks of `tests/scripts/hangs.py`, watched as a launcher would watch them, without a launcher."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.launch.jobs import state
from topout.launch.observation import Observation
from topout.launch.ports import hold_port
from topout.launch.watchdog import Watchdog
from topout.record.page_snapshot import Snapshot
from topout.record.status_page import PAGE_FD, StatusPage

SCRIPT = REPOSITORY / "tests" / "scripts" / "hangs.py"


class HungJob:
    """Runs until left; `lines` is what a person would have read."""

    def __init__(self, run: Path, how: str, *, script: Path = SCRIPT, named_after_s: float = 4.0) -> None:
        self.run = run
        self.lines: list[str] = []
        self.ranks: list[subprocess.Popen[bytes]] = []
        self._pages: list[StatusPage] = []
        self._watchdog = Watchdog(named_after_s=named_after_s, stacks="hang")
        self._held = hold_port("127.0.0.1")
        port = self._held.getsockname()[1]
        for rank in range(2):
            page, fd = StatusPage.create()
            env = {
                **os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port), "TOPOUT_RUN": str(run), PAGE_FD: str(fd), "TORCH_FR_BUFFER_SIZE": "20000",
            }  # fmt: skip
            with open(run / f"{rank}.err", "wb") as err:
                command = [sys.executable, "-P", "-m", "topout.record.rank", str(script), how]
                self.ranks.append(subprocess.Popen(command, env=env, cwd=run, pass_fds=(fd,), stdout=err, stderr=err))
            os.close(fd)
            self._pages.append(page)

    def __enter__(self) -> "HungJob":
        return self

    def __exit__(self, *_error: object) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()
        self._held.close()

    def page(self, rank: int) -> Snapshot:
        return self._pages[rank].read() or Snapshot()

    def watch(self, until: Callable[[], object], seconds: float = 60.0) -> bool:
        """Looks, as a launcher does, until the claim holds; what ranks say passes through JSON as between hosts."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            look = self._watchdog.look(time.monotonic(), [self._observe(rank) for rank in range(2)])
            self.lines += look.lines
            for rank in look.ask_stacks:
                self._pages[rank].ask()
            if until():
                return True
            time.sleep(0.5)
        return False

    def stacks(self, rank: int) -> str:
        path = self.run / "hang" / f"rank-{rank:05d}.txt"
        return path.read_text() if path.exists() else ""

    def _observe(self, rank: int) -> Observation:
        process = self.ranks[rank]
        seen = Observation(
            rank=rank,
            host=f"n{rank + 1}",
            pid=process.pid,
            process_state=state(process.pid),
            page=self._pages[rank].read(),
            has_ended=process.poll() is not None,
        )
        return Observation.from_wire(seen.to_wire())
