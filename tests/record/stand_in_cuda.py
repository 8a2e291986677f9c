"""A stand-in for CUDA whose streams are lists of times, with the device clock on it; real ones are in the GPU tier."""

from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from topout.record.recorder import Recorder
from topout.record.settings import Settings
from topout.record.status import StatusLine
from topout.record.torch_taps.device import DeviceClock
from topout.schema.event import Kind


@dataclass(frozen=True)
class Stream:
    """What the clock looks at."""

    name: str
    device: int
    is_dry: bool = field(compare=False)

    def query(self) -> bool:
        return self.is_dry


class StandInCuda:
    """Each stream has a time of its own, in milliseconds."""

    def __init__(self) -> None:
        self.times = {"own": 0.0, "side": 0.0, "other GPU": 0.0}
        self.stream = "own"
        self.is_failing = self.is_dry = self.is_dry_unless_held = False
        self.num_spins = self.num_allocations = 0
        self.is_evaluating = False
        self.is_held = False
        cuda = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                self.at_ms = -1.0

            def record(self) -> None:
                if cuda.is_failing:
                    raise RuntimeError("an illegal memory access was encountered")
                self.at_ms = cuda.times[cuda.stream]

            def query(self) -> bool:
                return True

            def elapsed_time(self, later: "Event") -> float:
                return later.at_ms - self.at_ms

        self.Event = Event

    def memory_stats(self) -> dict[str, int]:
        return {"allocation.all.allocated": self.num_allocations}

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return False

    def current_stream(self) -> "Stream":
        is_dry = self.is_dry or (self.is_dry_unless_held and not self.is_held)
        return Stream(self.stream, int(self.stream == "other GPU"), is_dry)

    def _sleep(self, cycles: int) -> None:
        self.times[self.stream] += cycles / 2e6
        self.num_spins += 1
        self.is_held = True

    @contextmanager
    def on(self, stream: str):
        before, self.stream = self.stream, stream
        yield
        self.stream = before


def torch_of(cuda: StandInCuda, version: str | None = "13.0", module: Any = None) -> Any:
    """`module` is what has torch's hooks for all modules."""
    return SimpleNamespace(
        cuda=cuda,
        version=SimpleNamespace(cuda=version),
        nn=SimpleNamespace(modules=SimpleNamespace(module=module)),
        is_grad_enabled=lambda: not cuda.is_evaluating,
    )


def made(module: Any = None):
    """A stand-in, its clock and the rows that it gave, by phase."""
    cuda = StandInCuda()
    recorder = Recorder(Settings(), StatusLine(None))
    recorder.code = lambda kind, name="": name if kind == Kind.DEVICE else 0
    rows: list[tuple[str, int]] = []
    recorder.emit = lambda row: rows.append((row[0], row[2]))
    return cuda, DeviceClock(torch_of(cuda, module=module), recorder), rows


def end_step(clock, number: int) -> None:
    clock._recorder.num_steps = number + 1
    clock.step_ended(number)
