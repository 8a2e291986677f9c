"""Samples every rank from outside, in a thread of the launcher, so that watching costs the ranks nothing.

Counters once a second, the state of loader workers ten times a second (docs/recording.md names them); four and two
times as often in the first half minute, so that a short run has enough of them. After an hour counters are written
every ten seconds, so that a long run does not fill the disk. It never raises, and it looks less often when looking
takes more than a hundredth of one core.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from topout.record.clock import clock_pair
from topout.record.gpu_counters import GpuCounters
from topout.record.process_tree import are_workers, descendants, read_cpu, read_io, read_resident_bytes
from topout.record.worker_state import STATES, StateProbe
from topout.record.writer import EventWriter
from topout.schema.event import CUMULATIVE_COUNTERS, NOT_GIVEN, Kind, pack_code

_LOOK_S = 0.1
_COUNT_S = 1.0
_FIRST_LOOK_S = 0.05
_FIRST_COUNT_S = 0.25
_FIRST_S = 30.0
_LATE_S = 3600.0
_LATE_ROWS_S = 10.0
_LARGEST_COST_SHARE = 0.01
_LOW_IS_WORST = ("host_available_bytes",)


@dataclass(frozen=True, kw_only=True)
class Target:
    """A rank to be sampled, and the file for what is seen."""

    rank: int
    pid: int
    gpu: int | None
    path: Path


class Sampler:
    """Runs until stopped. `note` hears when a file cannot be written, or that sampling broke."""

    def __init__(self, targets: Sequence[Target], note: Callable[[str], None]) -> None:
        self._note = note
        self._stop = threading.Event()
        self._ranks = [RankSampler(target, note) for target in targets]
        self._thread = threading.Thread(target=self._run, name="topout-sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(5)

    def _run(self) -> None:
        try:
            self._sample()
        except Exception as error:
            self._note(f"counters end here: {type(error).__name__}: {error}")
        finally:
            for rank in self._ranks:
                with contextlib.suppress(Exception):
                    rank.close()

    def _sample(self) -> None:
        gpus = GpuCounters()
        start = next_count = next_rows = time.monotonic()
        while True:
            now = time.monotonic()
            is_first = now < start + _FIRST_S
            if now >= next_count:
                next_count = now + (_FIRST_COUNT_S if is_first else _COUNT_S)
                is_kept = now >= next_rows
                if is_kept and now >= start + _LATE_S:
                    next_rows = now + _LATE_ROWS_S
                host = host_counters()
                for rank in self._ranks:
                    rank.count(host, gpus, is_kept=is_kept)
            cost_before = time.thread_time()
            for rank in self._ranks:
                rank.look()
            cost_s = time.thread_time() - cost_before
            look_s = _FIRST_LOOK_S if is_first else _LOOK_S
            if self._stop.wait(min(_COUNT_S, max(look_s, cost_s / _LARGEST_COST_SHARE))):
                break
        gpus.close()


class RankSampler:
    """One rank, its children, and its file."""

    def __init__(self, target: Target, note: Callable[[str], None]) -> None:
        self._target = target

        def say(text: str) -> None:
            note(f"rank {target.rank} counters: {text}")

        self._writer = EventWriter(target.path, say, on_limit=say)
        self._writer.facts({"rank": target.rank, "pid": target.pid, "clock_pairs": [clock_pair()]})
        self._own_probe = StateProbe(target.pid)
        self._probes: dict[int, StateProbe] = {}
        self._states = dict.fromkeys(STATES, 0)
        self._largest: dict[str, int] = {}
        self._unwritten: dict[str, int] = {}
        """Since the last rows; of memory the most that was taken."""

    def look(self) -> None:
        """Counts the state of each worker, or of the rank where it has none."""
        for probe in list(self._probes.values()) or [self._own_probe]:
            state = probe.look()
            if state is not None:
                self._states[state] += 1

    def count(self, host: dict[str, int], gpus: GpuCounters, *, is_kept: bool) -> None:
        """Reads everything and, if it is to be kept, writes one row a counter."""
        below = descendants(self._target.pid)
        self._follow(are_workers(self._target.pid, below))
        values = self._count_processes(below)
        if not values:
            return
        values |= host | gpus.read(self._target.gpu)
        if any(self._states.values()):
            values.update({f"input_samples_{state}": number for state, number in self._states.items()})
        for name, value in values.items():
            if name in CUMULATIVE_COUNTERS:
                # between a worker's death and its reaping its share is missing for a moment
                self._unwritten[name] = self._largest[name] = max(value, self._largest.get(name, 0))
            elif name.endswith("_bytes"):
                worst = min if name in _LOW_IS_WORST else max
                self._unwritten[name] = worst(value, self._unwritten.get(name, value))
            else:
                self._unwritten[name] = value
        if is_kept:
            self._write_rows()

    def _write_rows(self) -> None:
        at_ns = time.monotonic_ns()
        for name, value in self._unwritten.items():
            self._writer.append(pack_code(Kind.COUNTER, self._writer.name_id(name)), at_ns, 0, value, NOT_GIVEN)
        self._unwritten = {}
        self._writer.flush()

    def close(self) -> None:
        for probe in (self._own_probe, *self._probes.values()):
            probe.close()
        # a rank that ran out of memory between two rows shows how far it came
        self._write_rows()
        self._writer.close()

    def _follow(self, workers: list[int]) -> None:
        for pid in [pid for pid in self._probes if pid not in workers]:
            self._probes.pop(pid).close()
        for pid in workers:
            if pid not in self._probes:
                self._probes[pid] = StateProbe(pid)

    def _count_processes(self, below: list[int]) -> dict[str, int]:
        cpu, resident = read_cpu(self._target.pid), read_resident_bytes(self._target.pid)
        if cpu is None or resident is None:
            return {}
        below_cpu = [found for pid in below if (found := read_cpu(pid)) is not None]
        values = {
            "cpu_ns": cpu.own_ns,
            "worker_cpu_ns": cpu.reaped_ns + sum(found.own_ns + found.reaped_ns for found in below_cpu),
            "system_ns": cpu.own_system_ns,
            "worker_system_ns": cpu.reaped_system_ns
            + sum(found.own_system_ns + found.reaped_system_ns for found in below_cpu),
            "page_faults": cpu.own_page_faults,
            "resident_bytes": resident,
            "worker_resident_bytes": sum(read_resident_bytes(pid) or 0 for pid in below),
        }
        for pid in (self._target.pid, *below):
            for name, value in read_io(pid).items():
                values[name] = values.get(name, 0) + value
        return values


def host_counters() -> dict[str, int]:
    """Of the whole machine; what it does not tell is left out."""
    values: dict[str, int] = {}
    with contextlib.suppress(Exception):
        interfaces = {name: io for name, io in psutil.net_io_counters(pernic=True).items() if name != "lo"}
        if interfaces:
            values["network_received_bytes"] = sum(io.bytes_recv for io in interfaces.values())
            values["network_sent_bytes"] = sum(io.bytes_sent for io in interfaces.values())
    with contextlib.suppress(Exception):
        disks = psutil.disk_io_counters()
        if disks is not None:
            values["disk_read_bytes"], values["disk_write_bytes"] = disks.read_bytes, disks.write_bytes
    with contextlib.suppress(Exception):
        values["host_available_bytes"] = psutil.virtual_memory().available
    return values
