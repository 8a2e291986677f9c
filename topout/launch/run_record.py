"""run.json: what was asked, where it ran, how it ended. Written whole at the start, when notes arrive, and at the end.

A folder that cannot be written any more never stops the job: one warning, and the notes stay in memory.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from topout import __version__
from topout.launch.first_failure import RankEnd
from topout.schema.run_folder import RUN_VERSION, RunFolder, write_whole
from topout.schema.spec import RunSpec
from topout.schema.world import Rank, World

_SECONDS_BETWEEN_WRITES = 2.0
_MOST_NOTES = 200


class RunRecord:
    """The run.json of a running job."""

    def __init__(
        self, folder: RunFolder | None, spec: RunSpec, world: World, command: Sequence[str], *, restart: int = 0
    ) -> None:
        self._folder = folder
        self._warn: Callable[[str], None] = lambda text: None
        self._has_warned = False
        self._is_dirty = False
        self._written_at = 0.0
        self._started_at = time.monotonic()
        self.content: dict[str, Any] = {
            "version": RUN_VERSION,
            "topout_version": __version__,
            "command": list(command),
            "spec": _spec_values(spec),
            "origins": spec.origins,
            "status": "running",
            "started_at": _now(),
            "duration_s": None,
            "exit_code": None,
            "hosts": _hosts(world),
            "ranks": [_rank_entry(rank) for rank in world.ranks],
            "versions": {},
            "job": os.environ.get("TOPOUT_JOB"),
            "git_commit": None,
            "restart": restart,
            "notes": [],
        }

    def write(self) -> None:
        """Raises OSError: whoever starts the run may still choose another folder."""
        self._is_dirty = False
        self._written_at = time.monotonic()
        if self._folder is not None:
            write_whole(self._folder.run_json, json.dumps(self.content, indent=1) + "\n")

    def move_to(self, folder: RunFolder | None, warn: Callable[[str], None]) -> None:
        """Settles where to write from now on, and who hears when that fails."""
        self._folder = folder
        self._warn = warn

    def note(self, text: str) -> None:
        notes = self.content["notes"]
        if text not in notes and len(notes) < _MOST_NOTES:
            notes.append(text)
            self._is_dirty = True

    def warn_once(self, error: OSError) -> None:
        """The folder has failed: said once, whichever file it was."""
        if not self._has_warned and self._folder is not None:
            self._has_warned = True
            text = f"the run folder cannot be written any more ({error.strerror or error}); training goes on"
            self.note(text)
            self._warn(f"topout: {text}. Folder: {self._folder.path}")

    def tick(self) -> None:
        if self._is_dirty and time.monotonic() - self._written_at >= _SECONDS_BETWEEN_WRITES:
            self.write_or_warn()

    def look_around(self, spec: RunSpec) -> None:
        """What takes a while to find out, and need not be known before the ranks run."""
        self.content.update(versions=_versions(), git_commit=_git_commit(spec))

    def started(self, pids: dict[int, int]) -> None:
        """Called once for each host."""
        for entry in self.content["ranks"]:
            entry["pid"] = pids.get(entry["rank"], entry["pid"])
        self.write_or_warn()

    def finished(self, status: str, exit_code: int, ends: Sequence[RankEnd]) -> None:
        by_rank = {end.rank: end for end in ends}
        for entry in self.content["ranks"]:
            if end := by_rank.get(entry["rank"]):
                entry.update(exit_code=None if end.died_by_signal else end.code, signal=end.signal)
        self.content.update(
            status=status, exit_code=exit_code, duration_s=round(time.monotonic() - self._started_at, 3)
        )  # fmt: skip
        self.write_or_warn()

    def write_or_warn(self) -> None:
        try:
            self.write()
        except OSError as error:
            self.warn_once(error)


def _spec_values(spec: RunSpec) -> dict[str, Any]:
    return {item.name: getattr(spec, item.name) for item in fields(spec) if item.name != "origins"}


def _hosts(world: World) -> list[dict[str, Any]]:
    return [
        {
            "name": host.name,
            "num_cores": len({(core.socket, core.numa, core.physical) for core in host.cores}),
            "num_logical_cores": len(host.cores),
            "memory_bytes": host.memory_bytes,
            "gpus": list(host.gpus),
            "cpu_model": host.cpu_model,
            "address": host.address,
            "interface": host.interface,
        }
        for host in world.hosts
    ]


def _rank_entry(rank: Rank) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "host": rank.host,
        "cores": list(rank.cores),
        "num_threads": rank.num_threads,
        "gpu": rank.gpu,
        "numa": list(rank.numa),
        "nic": rank.nic.name if rank.nic else None,
        "pid": None,
        "exit_code": None,
        "signal": None,
    }


def _versions() -> dict[str, str | None]:
    found = {name: _installed(name) for name in ("torch", "tensorflow", "keras", "jax")}
    versions = {name: version for name, version in found.items() if version is not None or name == "torch"}
    return {"python": sys.version.split()[0], "topout": __version__, **versions}


def _now() -> str:
    """In the local time zone, as datetime.isoformat writes it."""
    now = time.time()
    zone = time.strftime("%z", time.localtime(now))
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now))
    return f"{moment}.{int(now * 1000) % 1000:03d}{zone[:3]}:{zone[3:]}"


def _installed(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_commit(spec: RunSpec) -> str | None:
    """Of the folder the script lies in; None outside a repository or when git takes long."""
    import subprocess

    folder = Path.cwd() if spec.is_module or spec.script is None else Path(spec.script).resolve().parent
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=1, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
