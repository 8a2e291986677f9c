"""Several probes on this machine, as if each had a host of its own: real processes that really meet."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.ports import free_port


def start_company(
    folder: Path,
    size: int,
    command: Sequence[str],
    before: Mapping[int, Sequence[str]] | None = None,
    env: Mapping[str, str] | None = None,
    own: Mapping[int, Mapping[str, str]] | None = None,
) -> list["subprocess.Popen[str]"]:
    """One process a host; `before` are words put before the command of some of them, `own` are their variables."""
    port = str(free_port())
    started = []
    for number in range(size):
        environment = {
            **os.environ,
            **(env or {}),
            "GROUP_RANK": str(number),
            "GROUP_WORLD_SIZE": str(size),
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "TOPOUT_RUN": str(folder),
            **(own or {}).get(number, {}),
        }
        words = [*(before or {}).get(number, ()), sys.executable, *command]
        started.append(
            subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    return started


def run_company(
    folder: Path, size: int, script: str, before: Mapping[int, Sequence[str]] | None = None, timeout: float = 90
) -> list[str]:
    """What each printed; fails with what they complained about."""
    ended = [
        (process, *process.communicate(timeout=timeout))
        for process in start_company(folder, size, ["-c", script], before)
    ]
    for process, _, errors in ended:
        assert process.returncode == 0, errors
    return [out for _, out, _ in ended]
