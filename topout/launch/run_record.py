"""run.json: what was asked, where it ran, how it ended. Written whole at the start, when notes arrive, and at the end.

A folder that cannot be written any more never stops the job: one warning, and the notes stay in memory.
"""

from __future__ import annotations

import os
import time

from topout import __version__
from topout.schema.launcher_process import describe_launcher
from topout.schema.light_dataclass import names_of
from topout.schema.light_json import dumps_indented
from topout.schema.run_folder import RUN_JSON, RUN_VERSION, RunFolder, write_whole
from topout.schema.spec import RunSpec
from topout.schema.world import Rank, World

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from topout.launch.first_failure import RankEnd
    from topout.launch.scribe import Scribe

MARK_VARIABLE = "TOPOUT_MARK"
"""What whoever starts a run says to know it again among others; kept in run.json."""
_SECONDS_BETWEEN_WRITES = 2.0
_MOST_NOTES = 200
_MOST_NAMED = 4


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
            # near the beginning, where `is_led_by` looks for it
            "launcher": describe_launcher(),
            # `python -m topout` names a file that nobody calls
            "command": ["topout" if word == "__main__.py" else word for word in command[:1]] + list(command[1:]),
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
            "mark": os.environ.get(MARK_VARIABLE),
            "git_commit": None,
            "restart": restart,
            "notes": [],
        }
        self._entries = {entry["rank"]: entry for entry in self.content["ranks"]}
        self._notes = _Notes(host.name for host in world.hosts)

    def write(self) -> None:
        """Raises OSError: whoever starts the run may still choose another folder.

        Ranks do not wait for the disk: when they have started it is written again.
        """
        self._put(self._text(), is_synced=False)

    def move_to(self, folder: RunFolder | None, warn: Callable[[str], None]) -> None:
        """Settles where to write from now on, and who hears when that fails."""
        self._folder = folder
        self._warn = warn

    def note(self, text: str) -> None:
        self._is_dirty |= self._notes.add(text)

    def warn_once(self, error: OSError) -> None:
        """The folder has failed: said once, whichever file it was."""
        if not self._has_warned and self._folder is not None:
            self._has_warned = True
            text = f"the run folder cannot be written any more ({error.strerror or error}); training goes on"
            self.note(text)
            self._warn(f"topout: {text}. Folder: {self._folder.path}")

    def tick(self, scribe: Scribe) -> None:
        if self._is_dirty and time.monotonic() - self._written_at >= _SECONDS_BETWEEN_WRITES:
            text = self._text()
            scribe.do(lambda: self._put_or_warn(text), len(text))

    def look_around(self, spec: RunSpec) -> None:
        """What takes a while to find out, and need not be known before the ranks run; found out once."""
        if self.content["versions"]:
            return
        from topout.launch.surroundings import git_commit, versions

        is_elsewhere = spec.is_module or spec.script is None
        folder = "." if is_elsewhere else os.path.dirname(os.path.realpath(spec.script or ""))  # noqa: PTH120
        self.content.update(versions=versions(), git_commit=git_commit(folder))

    def started(self, pids: dict[int, int]) -> None:
        """Called once for each launcher, of which there may be as many as ranks."""
        for rank in pids.keys() & self._entries.keys():
            self._entries[rank]["pid"] = pids[rank]
        # written at the next tick, when the ranks no longer need every core to start
        self._is_dirty, self._written_at = True, 0.0

    def finished(self, status: str, exit_code: int, ends: Sequence[RankEnd]) -> None:
        for end in ends:
            if entry := self._entries.get(end.rank):
                entry.update(exit_code=None if end.died_by_signal else end.code, signal=end.signal)
        self.content.update(
            status=status, exit_code=exit_code, duration_s=round(time.monotonic() - self._started_at, 3)
        )  # fmt: skip
        self._put_or_warn(self._text())
        # that it could not be written is a note, too
        self.content["notes"] = self._notes.in_words()

    def _text(self) -> str:
        """As of now."""
        self._is_dirty = False
        self._written_at = time.monotonic()
        self.content["notes"] = self._notes.in_words()
        return dumps_indented(self.content) + "\n"

    def _put(self, text: str, *, is_synced: bool = True) -> None:
        if self._folder is not None:
            write_whole(self._folder.inside(RUN_JSON), text, is_synced=is_synced)

    def _put_or_warn(self, text: str) -> None:
        try:
            self._put(text)
        except OSError as error:
            self.warn_once(error)


class _Notes:
    """What launchers and recorders note, each sentence once, with all ranks or hosts that say it.

    Of a sentence that all of eight thousand ranks say nobody wants to read eight thousand.
    """

    def __init__(self, hosts: Iterable[str]) -> None:
        self._hosts = frozenset(hosts)
        self._said_by: dict[tuple[str, str], dict[str, None]] = {}
        """By whose kind and the rest of the sentence."""
        self._num_left_out = 0

    def add(self, text: str) -> bool:
        """Whether it is news."""
        kind, who, rest = self._parted(text)
        if (kind, rest) not in self._said_by and len(self._said_by) == _MOST_NOTES:
            self._num_left_out += 1
            return False
        said_by = self._said_by.setdefault((kind, rest), {})
        is_news = who not in said_by
        said_by[who] = None
        return is_news

    def in_words(self) -> list[str]:
        # a copy: the sampler's thread may add to it
        said = [f"{_named(kind, list(who))}{rest}" for (kind, rest), who in list(self._said_by.items())]
        return [*said, f"{self._num_left_out} more notes are left out"] if self._num_left_out else said

    def _parted(self, text: str) -> tuple[str, str, str]:
        """("rank", "9", ": no NVML") of "n2: rank 9: no NVML"; a rank's host is known."""
        host, colon, rest = text.partition(": ")
        host, rest = (host, rest) if colon and host in self._hosts else ("", text)
        number = rest.removeprefix("rank ")
        behind = number.lstrip("0123456789")
        if number not in (rest, behind):
            return "rank", number.removesuffix(behind), behind
        return ("host", host, f": {rest}") if host else ("", "", text)


def _named(kind: str, who: list[str]) -> str:
    if kind != "rank" or len(who) == 1:
        more = f" and {len(who) - _MOST_NAMED} more" if len(who) > _MOST_NAMED else ""
        return ("rank " if kind == "rank" else "") + ", ".join(who[:_MOST_NAMED]) + more
    # late: no rank says anything before it has started
    from topout.host.bindings_report import ranges

    return f"ranks {ranges(map(int, who))}"


def _spec_values(spec: RunSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in names_of(spec) if name != "origins"}


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


def _now() -> str:
    """In the local time zone, as datetime.isoformat writes it."""
    now = time.time()
    zone = time.strftime("%z", time.localtime(now))
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now))
    return f"{moment}.{int(now * 1000) % 1000:03d}{zone[:3]}:{zone[3:]}"
