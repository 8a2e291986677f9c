"""Reads torch's flight recorder: when this rank arrived at each collective, and which are not over. DDP's included.

Its ring holds the last 20,000 collectives of a run (`TORCH_FR_BUFFER_SIZE`); reading them takes some 30 microseconds
each, so it is done at the end, and when a rank hangs. How far each process group has come takes 0.1 ms. On Gloo it
stamps no completion; the end of backward tells that.
"""

import sys
import time
from types import ModuleType
from typing import Any

import msgspec

from topout.record.clock import TimeOfDay, clock_pair
from topout.record.page_snapshot import Call
from topout.record.recorder import Recorder
from topout.record.row_names import LIFE_BITS
from topout.schema.event import NOT_GIVEN, Kind


class _Entry(msgspec.Struct):
    record_id: int
    collective_seq_id: int
    profiling_name: str
    time_created_ns: int
    is_p2p: bool = False
    input_sizes: list[list[int]] = []
    input_dtypes: list[str] = []
    process_group: list[str] = []
    time_discovered_completed_ns: int | None = 0
    pg_id: int = -1
    retired: bool = False


class _Dump(msgspec.Struct):
    entries: list[_Entry] = []


class _GroupStatus(msgspec.Struct):
    last_enqueued_collective: str = "0"
    last_completed_collective: str = "0"


class _Status(msgspec.Struct):
    pg_status: dict[int, _GroupStatus] = {}


_DTYPE_BYTES = {
    "Double": 8,
    "Long": 8,
    "Float": 4,
    "Int": 4,
    "Half": 2,
    "BFloat16": 2,
    "Short": 2,
    "Byte": 1,
    "Char": 1,
}
_last_record_id = -1
_num_lives = 0
"""Of the default group; each counts its collectives from 1."""


def default_group_gone() -> None:
    """A later one has the same name."""
    global _num_lives
    _num_lives += 1


def record_arrivals(recorder: Recorder, day: TimeOfDay) -> None:
    """One ARRIVAL row for each collective since the last call."""
    global _last_record_id
    torch = sys.modules.get("torch")
    if torch is None or not recorder.is_active:
        return
    distributed = torch.distributed
    if distributed.is_initialized():
        recorder.fact(backend=distributed.get_backend())
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)
    if dump is None:
        recorder.note("this torch has no flight recorder: waiting and transfer are not told apart")
        return
    parsed = msgspec.json.decode(dump(includeCollectives=True, onlyActive=False), type=_Dump)
    day.look()
    monotonic, epoch = clock_pair()
    entries = [entry for entry in parsed.entries if entry.time_created_ns >= day.set_ns]
    if len(entries) < len(parsed.entries):
        recorder.note("the host's time of day was set: when this rank arrived at collectives before is not known")
    for entry in entries:
        if entry.record_id <= _last_record_id or entry.is_p2p:
            continue
        name = entry.profiling_name.rpartition(":")[2]
        group = entry.process_group[0] if entry.process_group else "0"
        code = recorder.code(Kind.ARRIVAL, name if group == "0" else f"{name}@{group}")
        completed_ns = entry.time_discovered_completed_ns or 0
        duration_ns = completed_ns - entry.time_created_ns if completed_ns else 0
        start_ns = entry.time_created_ns - epoch + monotonic
        sequence = (_num_lives << LIFE_BITS) + entry.collective_seq_id
        recorder.emit((code, start_ns, duration_ns, _num_bytes(entry), sequence))
        _last_record_id = entry.record_id


def _num_bytes(entry: _Entry) -> int:
    if len(entry.input_sizes) != len(entry.input_dtypes):
        return NOT_GIVEN
    total = 0
    for sizes, dtype in zip(entry.input_sizes, entry.input_dtypes, strict=True):
        num_elements = 1
        for size in sizes:
            num_elements *= size
        total += num_elements * _DTYPE_BYTES.get(dtype, 4)
    return total


_RECORDERS = {"gloo": "_dump_fr_trace_json", "nccl": "_dump_nccl_trace_json"}
"""Each of these backends has a flight recorder of its own."""


class GroupWatch:
    """How far this rank is in its process groups; each is called `backend:name`, which is the same on all its ranks."""

    def __init__(self, module: ModuleType) -> None:
        self._module: Any = module
        self._names: dict[str, list[str]] = {backend: [] for backend in _RECORDERS}
        """By the recorder's number of a group, which counts a process's own groups in order of creation."""

    def is_initialized(self) -> bool:
        return bool(self._module.is_initialized())

    def positions(self) -> list[tuple[str, int, int]]:
        """(group, collectives begun, number of the one that ended last); a group without any is at 0.

        Gloo runs two at a time: #8 may end before #7, and then the last is #7 although both are over. See `pending`.
        """
        found = []
        self._learn_names()
        for backend, dump in self._dumps():
            status = msgspec.json.decode(dump(includeCollectives=False, onlyActive=False), type=_Status, strict=False)
            for number, name in enumerate(self._names[backend]):
                group = status.pg_status.get(number, _GroupStatus())
                reached, completed = int(group.last_enqueued_collective), int(group.last_completed_collective)
                found.append((f"{backend}:{name}", max(0, reached), max(0, completed)))
        return found

    def pending(self) -> list[Call]:
        """Collectives, sends and receives that were begun and are not over."""
        found = []
        epoch_ns = time.time_ns()
        for backend, dump in self._dumps():
            parsed = msgspec.json.decode(dump(includeCollectives=True, onlyActive=True), type=_Dump)
            found += [
                Call(
                    operation=entry.profiling_name.rpartition(":")[2],
                    group=f"{backend}:{entry.process_group[0] if entry.process_group else '0'}",
                    sequence=None if entry.is_p2p else entry.collective_seq_id,
                    num_bytes=num_bytes if (num_bytes := _num_bytes(entry)) != NOT_GIVEN else None,
                    age_s=max(0, epoch_ns - entry.time_created_ns) / 1e9,
                )
                for entry in parsed.entries
                if not entry.retired
            ]
        return found

    def _dumps(self) -> list[tuple[str, Any]]:
        c10d = sys.modules["torch"]._C._distributed_c10d
        return [(backend, getattr(c10d, name)) for backend, name in _RECORDERS.items() if hasattr(c10d, name)]

    def _learn_names(self) -> None:
        """Names stay known after a group is gone, since numbers are not used again."""
        world = self._module._world
        for group, name in list(world.pg_names.items()):
            backends = str(world.pg_backend_config.get(group, ""))
            for backend, names in self._names.items():
                if backend in backends and name not in names:
                    names.append(name)
