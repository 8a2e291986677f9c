"""Real jobs of tiny scripts: how tests start and await them."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ANNOUNCE = """
import os, time
def announce(name=None):
    with open(f"pid-{name or os.environ.get('RANK', '0')}.tmp", "w") as file:
        file.write(str(os.getpid()))
    os.rename(file.name, file.name.removesuffix(".tmp"))
announce()
"""
"""Put before a script: each rank writes its process number into the file pid-RANK."""


def start(folder: Path, script: str, *options: str, **env: str) -> "subprocess.Popen[str]":
    """`topout run OPTIONS train.py` in the background, for tests that send signals."""
    (folder / "train.py").write_text(script)
    return subprocess.Popen(
        [sys.executable, "-m", "topout", "run", "--no-report", *options, "train.py"],
        cwd=folder,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def await_pid(folder: Path, name: object) -> int:
    path = folder / f"pid-{name}"
    assert wait_for(path.exists), f"{name} did not start"
    return int(path.read_text())


def wait_for(claim: Callable[[], object], seconds: float = 30.0) -> bool:
    """Generous, since a test machine may be busy."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if claim():
            return True
        time.sleep(0.05)
    return False


def state(pid: int) -> str:
    """The kernel's letter, Z for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def is_running(pid: int) -> bool:
    return state(pid) != "Z"
