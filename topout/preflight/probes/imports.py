"""What it costs to start: a fresh interpreter that imports numpy and torch, alone on one host and on all hosts at once.

The first time counts: nothing of it is in this host's memory yet, unless somebody used it a moment ago. Other
interpreters (a virtual environment elsewhere, `apptainer exec image.sif python`) can be tried beside the job's own.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from topout.preflight.facts import ImportTime
from topout.preflight.probes.meeting import Meeting
from topout.preflight.probes.mounts import find_mount

OWN = "python"
_LIMIT_S = 40.0
_CONTAINERS = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "SINGULARITY_NAME", "ENROOT_ROOTFS", "CH_RUNNING")
_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
_PROGRAM = """
import time
started = time.time()
import sys
opened = [0]
sys.addaudithook(lambda event, _: opened.__setitem__(0, opened[0] + (event == "open")))
def attempt(name):
    before = time.perf_counter()
    try:
        module = __import__(name)
    except ImportError:
        return None, None
    return time.perf_counter() - before, getattr(module, "__file__", None)
numpy_s, numpy_path = attempt("numpy")
torch_s, torch_path = attempt("torch")
import json
print("TOPOUT" + json.dumps({"started": started, "numpy_s": numpy_s, "torch_s": torch_s, "num_files": opened[0],
                             "path": torch_path or numpy_path}), flush=True)
import os
os._exit(0)
"""


def time_imports(meeting: Meeting, others: tuple[str, ...] = ()) -> tuple[ImportTime, ...]:
    """All hosts call it. The first host tries alone, then all together; the first keeps both of its figures."""
    found: list[ImportTime] = []
    for command in (OWN, *others):
        if meeting.is_first:
            found.append(time_import(command, num_hosts=1))
        if meeting.size > 1:
            present = meeting.exchange(f"import {command}", "ready", patience_s=_LIMIT_S)
            num_hosts = sum(other is not None for other in present)
            found.append(time_import(command, num_hosts=num_hosts))
    return tuple(found)


def time_import(command: str, *, num_hosts: int) -> ImportTime:
    words = [sys.executable] if command == OWN else shlex.split(command)
    begun_s = time.time()
    try:
        done = subprocess.run(
            [*words, "-c", _PROGRAM],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return ImportTime(command=command, num_hosts=num_hosts, problem=f"it took longer than {_LIMIT_S:.0f} s")
    except OSError as error:
        return ImportTime(command=command, num_hosts=num_hosts, problem=error.strerror or str(error))
    answer = next((line for line in done.stdout.splitlines() if line.startswith("TOPOUT")), None)
    if answer is None:
        last = (done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"])[-1]
        return ImportTime(command=command, num_hosts=num_hosts, problem=last[:200])
    said = json.loads(answer.removeprefix("TOPOUT"))
    # inside another container the path means nothing here
    mount = find_mount(said["path"]) if said["path"] and Path(said["path"]).exists() else None
    return ImportTime(
        command=command,
        num_hosts=num_hosts,
        start_s=max(said["started"] - begun_s, 0.0),
        numpy_s=said["numpy_s"],
        torch_s=said["torch_s"],
        num_files=said["num_files"],
        path=said["path"],
        file_system=mount.file_system if mount else None,
        container=container_name() if command == OWN else _image_in(words),
    )


def container_name() -> str | None:
    """The image this process runs in; None outside of one."""
    named = next((value for name in _CONTAINERS if (value := os.environ.get(name))), None)
    if named is None and any(Path(mark).exists() for mark in _CONTAINER_MARKS):
        return "docker or podman"
    return named


def _image_in(words: list[str]) -> str | None:
    return next((word for word in words if word.endswith((".sif", ".sqsh", ".img"))), None)
