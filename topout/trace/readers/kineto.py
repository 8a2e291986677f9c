"""torch.profiler's JSON (Kineto), plain or gzipped: kernels, copies and operators with their times.

Not for the timing of steps: the profiler slows a small step by half. It tells what a step is made of.
"""

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from topout.schema.errors import TopoutError
from topout.schema.plain_file import check_plain
from topout.trace.table import Int64s

KERNEL, COPY, OPERATOR = "kernel", "gpu_memcpy", "cpu_op"
_SPIN = "spin_kernel"
"""What holds a device back (`torch.cuda._sleep`), and is no work; topout does so itself now and then."""
_COPIES = frozenset({"gpu_memcpy", "gpu_memset"})
_TIMED = frozenset({KERNEL, *_COPIES, OPERATOR, "cuda_runtime", "cuda_driver"})


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | str = 0
    tid: int | str = 0


class _Trace(msgspec.Struct):
    traceEvents: list[_Event] = []  # noqa: N815 - the format's own name


@dataclass(frozen=True, kw_only=True)
class Events:
    """Events of one category, ordered by their start."""

    names: tuple[str, ...]
    start_ns: Int64s
    end_ns: Int64s
    threads: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One rank's profiler window."""

    kernels: Events
    copies: Events
    operators: Events
    elapsed_ns: int
    """From the first event to the last."""


def read_profile(path: Path) -> Profile:
    check_plain(path)
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        events = msgspec.json.decode(data, type=_Trace).traceEvents
    except (OSError, EOFError, zlib.error, msgspec.DecodeError) as error:
        raise TopoutError(
            f"{path} cannot be read as a profile.", why=str(error), do="run again with --profile, or remove the file"
        ) from error
    timed = [event for event in events if event.ph == "X" and event.cat in _TIMED]
    timed.sort(key=lambda event: (event.ts, -event.dur))
    first = min((event.ts for event in timed), default=0.0)
    last = max((event.ts + event.dur for event in timed), default=0.0)
    return Profile(
        kernels=_columns([event for event in timed if event.cat == KERNEL and _SPIN not in event.name]),
        copies=_columns([event for event in timed if event.cat in _COPIES]),
        operators=_columns([event for event in timed if event.cat == OPERATOR]),
        elapsed_ns=round((last - first) * 1000),
    )


def _columns(events: list[_Event]) -> Events:
    start_ns = np.array([round(event.ts * 1000) for event in events], dtype=np.int64)
    end_ns = np.array([round((event.ts + event.dur) * 1000) for event in events], dtype=np.int64)
    return Events(
        names=tuple(event.name for event in events),
        start_ns=start_ns,
        end_ns=end_ns,
        threads=tuple(f"{event.pid}/{event.tid}" for event in events),
    )
