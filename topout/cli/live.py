"""A running job as its run folder shows it: the newest step, step time, input share and memory of every rank.

Reads only what was appended since the last look, of files that have grown. Not for analysis: a few steps of one moment
are no measurement; see `trace.readers.topout` for whole recordings.
"""

import io
import json
import os
import statistics
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from topout.cli.endings import SILENT, Ending, ending_of
from topout.schema.block import HEADER, MAGIC, BlockType, is_whole
from topout.schema.event import COLUMNS, Kind, kind_of, name_of
from topout.schema.launcher_process import is_launcher_alive
from topout.schema.plain_file import other_kind
from topout.schema.run_folder import LOST, RunFolder, open_run

_NUM_STEPS = 20
"""Over so many newest steps is a step time taken."""
_NUM_BLOCKS = 40
"""Of what is read only the newest blocks are decoded."""
_BEGINNING_BYTES = 64 << 10
_END_BYTES = 512 << 10
"""Of a recording that is longer than both together a first look reads nothing else; a block has at most a third."""
_COUNTERS_END_BYTES = 64 << 10
"""The same of counters, whose blocks are of one moment."""
_SILENT_S = 30.0
_ASK_EVERY_S = 30.0
"""A run whose launcher is elsewhere is looked into, and its scheduler asked, no more often."""


@dataclass(frozen=True, kw_only=True)
class LiveRank:
    """One rank at this moment; None: not known (yet)."""

    rank: int
    host: str
    status: str
    """`starting`, `training`, `silent`, `done`, `failed`, `lost` or `ended` (not waited for, since the job failed)."""
    step: int | None = None
    step_ns: int | None = None
    input_share: float | None = None
    memory_bytes: int | None = None
    """Host memory, loader workers included."""
    gpu_memory_bytes: int | None = None
    silent_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class LiveRun:
    """The job at this moment."""

    run: str
    status: str
    """As in run.json: `running`, `finished`, `failed` or `interrupted`; or `lost` or `silent`, see `endings`."""
    ranks: tuple[LiveRank, ...]
    note: str | None = None
    """A sentence on a run that is lost or silent."""


class BlockTail:
    """The rows appended to one event file since the last look."""

    def __init__(self, path: Path, end_bytes: int | None = None) -> None:
        self._path = path
        self._end_bytes = end_bytes
        self._offset = 0
        self._seen: os.stat_result | None = None
        self.names: dict[int, str] = {}
        self.facts: dict[str, Any] = {}

    def rows(self) -> list[Any]:
        """One array [columns, rows] a new block, oldest first."""
        newest: deque[bytes] = deque(maxlen=_NUM_BLOCKS)
        try:
            if not self._has_grown():
                return []
            with open(self._path, "rb") as file:
                source, begins_at = self._taken_up(file) if self._offset == 0 else (file, 0)
                source.seek(self._offset - begins_at)
                while (block := _next_block(source)) is not None:
                    block_type, payload = block
                    self._offset = begins_at + source.tell()
                    if block_type == BlockType.ROWS:
                        newest.append(payload)
                    else:
                        self._learn(block_type, payload)
        except (OSError, ValueError):
            return []
        return [np.frombuffer(payload, "<i8").reshape(len(COLUMNS), -1) for payload in newest]

    def age_s(self) -> float | None:
        """Since something was written, as of the last look."""
        return max(0.0, time.time() - self._seen.st_mtime) if self._seen is not None else None

    def _has_grown(self) -> bool:
        before, self._seen = self._seen, None
        self._seen = self._path.stat()
        if other_kind(self._seen.st_mode) is not None:
            return False
        if before is None:
            return True
        if before.st_ino != self._seen.st_ino or self._seen.st_size < self._offset:
            # begun anew at its limit
            self._offset = 0
            return True
        return before.st_size != self._seen.st_size

    def _taken_up(self, file: Any) -> tuple[Any, int]:
        """What to read, and where in the file that begins: of a long recording what is near its end.

        Names are in its beginning, but for those that came much later.
        """
        end_at = os.fstat(file.fileno()).st_size - (self._end_bytes or _END_BYTES)
        if end_at < _BEGINNING_BYTES:
            return file, 0
        while file.tell() < _BEGINNING_BYTES and (block := _next_block(file)) is not None:
            self._learn(*block)
        file.seek(end_at)
        end = file.read()
        first = _first_block(end)
        if first is None:
            return file, 0
        self._offset = end_at + first
        return io.BytesIO(end), end_at

    def _learn(self, block_type: int, payload: bytes) -> None:
        if block_type == BlockType.ROWS:
            return
        content = json.loads(payload)
        if block_type == BlockType.NAMES:
            self.names.update(enumerate(content[1:], content[0]))
        elif block_type == BlockType.FACTS:
            self.facts.update(content)


def _next_block(file: Any) -> tuple[int, bytes] | None:
    """None at the end, and at a block that is not whole yet."""
    header = file.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    magic, _, block_type, num_bytes, crc = HEADER.unpack(header)
    payload = file.read(num_bytes) if magic == MAGIC else b""
    return (block_type, payload) if len(payload) == num_bytes and is_whole(payload, crc) else None


def _first_block(data: bytes) -> int | None:
    """Where the first whole block begins in bytes that were cut out of a file; None without one."""
    at = data.find(MAGIC)
    while at >= 0:
        file = io.BytesIO(data)
        file.seek(at)
        # the magic word alone may be anything, with a checksum of what follows it is a block
        block = _next_block(file)
        if block is not None and block[1]:
            return at
        at = data.find(MAGIC, at + 1)
    return None


class RankTail:
    """What is known of one rank, brought up to date at every look."""

    def __init__(self, folder: RunFolder, rank: int) -> None:
        self._rank = rank
        self._events = BlockTail(folder.events(rank))
        self._counters = BlockTail(folder.counters(rank), _COUNTERS_END_BYTES)
        self._steps: deque[tuple[int, int]] = deque(maxlen=_NUM_STEPS)
        self._inputs: deque[tuple[int, int]] = deque(maxlen=50 * _NUM_STEPS)
        self._last_step: int | None = None
        self._levels: dict[str, int] = {}

    def look(self, entry: dict[str, Any], run_status: str) -> LiveRank:
        for rows in self._events.rows():
            self._take(rows)
        for rows in self._counters.rows():
            for code, value in zip(rows[0].tolist(), rows[3].tolist(), strict=True):
                self._levels[self._counters.names.get(name_of(code), "")] = value
        silent_s = self._events.age_s()
        return LiveRank(
            rank=self._rank,
            host=str(entry.get("host", "")),
            status=self._status(entry, run_status, silent_s),
            step=self._last_step,
            step_ns=int(statistics.median(ns for _, ns in self._steps)) if self._steps else None,
            input_share=self._input_share(),
            memory_bytes=self._memory_bytes(),
            gpu_memory_bytes=self._levels.get("gpu_memory_bytes"),
            silent_s=silent_s,
        )

    def _take(self, rows: Any) -> None:
        kinds = kind_of(rows[0])
        for kind, kept in ((Kind.STEP, self._steps), (Kind.INPUT, self._inputs)):
            for number in np.flatnonzero(kinds == kind)[-(kept.maxlen or 0) :].tolist():
                kept.append((int(rows[1, number]), int(rows[2, number])))
                if kind == Kind.STEP:
                    self._last_step = int(rows[4, number])

    def _input_share(self) -> float | None:
        total_ns = sum(duration_ns for _, duration_ns in self._steps)
        if total_ns <= 0:
            return None
        first_ns, last_ns = self._steps[0][0], self._steps[-1][0] + self._steps[-1][1]
        waited_ns = sum(duration_ns for start_ns, duration_ns in self._inputs if first_ns <= start_ns < last_ns)
        return min(1.0, waited_ns / total_ns)

    def _memory_bytes(self) -> int | None:
        if "resident_bytes" not in self._levels:
            return None
        return self._levels["resident_bytes"] + self._levels.get("worker_resident_bytes", 0)

    def _status(self, entry: dict[str, Any], run_status: str, silent_s: float | None) -> str:
        if run_status in (LOST, SILENT):
            return "done" if self._events.facts.get("ended") else run_status
        if run_status != "running":
            if entry.get("signal") is not None and run_status == "failed" and entry.get("exit_code") is not None:
                return "ended"
            return "done" if entry.get("exit_code") == 0 else "failed"
        if self._events.facts.get("ended"):
            return "done"
        if silent_s is not None and silent_s > _SILENT_S:
            return "silent"
        return "training" if self._last_step is not None else "starting"


class Watcher:
    """Looks at one run folder again and again."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._folder, _ = open_run(path)
        self._run: dict[str, Any] = {}
        self._run_stamp: tuple[int, int, int] | None = None
        self._tails: dict[int, RankTail] = {}
        self._ranks: dict[int, LiveRank] = {}
        """As they were last seen."""
        self._next_entry = 0
        self._next_question = 0.0
        self._last_ending = Ending("running")

    def look(self, most_ranks: int | None = None) -> LiveRun:
        """With `most_ranks`, of a running job with more only so many are looked at, and the next ones another time."""
        run = self._read_run()
        # whatever somebody has made of the file
        ranks = run["ranks"] if isinstance(run.get("ranks"), list) else []
        entries = [entry for entry in ranks if isinstance(entry, dict) and isinstance(entry.get("rank"), int)]
        ending = self._ending(run)
        if most_ranks is None or ending.status != "running":
            most_ranks = len(entries)
        for entry in self._turn(entries, most_ranks):
            tail = self._tails.setdefault(entry["rank"], RankTail(self._folder, entry["rank"]))
            self._ranks[entry["rank"]] = tail.look(entry, ending.status)
        name = self._folder.path.resolve().name
        seen = tuple(self._ranks[entry["rank"]] for entry in entries)
        return LiveRun(run=name, status=ending.status, ranks=seen, note=ending.note)

    def is_running(self) -> bool:
        """Looks at no rank."""
        return self._ending(self._read_run()).status == "running"

    def _read_run(self) -> dict[str, Any]:
        """Of many ranks it is long: read again once it was written again, or its launcher is gone."""
        try:
            # a network file system may answer from memory unless a file is opened
            with open(self._folder.run_json, "rb") as file:
                found = os.fstat(file.fileno())
            stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
        except OSError:
            stamp = None
        is_known = stamp is not None and stamp == self._run_stamp
        if not is_known or is_launcher_alive(self._run.get("launcher")) is False:
            _, self._run = open_run(self._path)
            self._run_stamp = stamp
        return self._run

    def _turn(self, entries: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
        """Those whose turn it is; all where one was never looked at."""
        if most >= len(entries) or any(entry["rank"] not in self._ranks for entry in entries):
            return entries
        first = self._next_entry % len(entries)
        self._next_entry = first + most
        return (entries + entries)[first : first + most]

    def _ending(self, run: dict[str, Any]) -> Ending:
        if run.get("status") == "running":
            if time.monotonic() < self._next_question:
                return self._last_ending
            self._next_question = time.monotonic() + _ASK_EVERY_S
        self._last_ending = ending_of(self._folder, run)
        return self._last_ending
