"""Reads torch's flight recorder: when this rank arrived at each collective, DDP's buckets included.

Its ring holds the last 20,000 collectives of a run (`TORCH_FR_BUFFER_SIZE`); reading them takes some 30 microseconds
each, so it is done once, at the end. On Gloo it knows no completion; the end of backward tells that.
"""

import sys

import msgspec

from topout.record.clock import clock_pair
from topout.record.recorder import Recorder
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


class _Dump(msgspec.Struct):
    entries: list[_Entry] = []


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


def record_arrivals(recorder: Recorder) -> None:
    """One ARRIVAL row for each collective since the last call."""
    global _last_record_id
    torch = sys.modules.get("torch")
    if torch is None or not recorder.is_active:
        return
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)
    if dump is None:
        recorder.note("this torch has no flight recorder: waiting and transfer are not told apart")
        return
    parsed = msgspec.json.decode(dump(includeCollectives=True, onlyActive=False), type=_Dump)
    monotonic, epoch = clock_pair()
    for entry in parsed.entries:
        if entry.record_id <= _last_record_id or entry.is_p2p:
            continue
        name = entry.profiling_name.rpartition(":")[2]
        group = entry.process_group[0] if entry.process_group else "0"
        code = recorder.code(Kind.ARRIVAL, name if group == "0" else f"{name}@{group}")
        completed_ns = entry.time_discovered_completed_ns or 0
        duration_ns = completed_ns - entry.time_created_ns if completed_ns else 0
        start_ns = entry.time_created_ns - epoch + monotonic
        recorder.emit((code, start_ns, duration_ns, _num_bytes(entry), entry.collective_seq_id))
        _last_record_id = entry.record_id
    distributed = torch.distributed
    if distributed.is_initialized():
        recorder.fact(backend=distributed.get_backend())


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
