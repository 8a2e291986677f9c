"""The device clock marks what the steps' own stream does, whatever else copies to the device meanwhile.

On a stand-in for CUDA whose streams are lists of times; real devices are in the GPU tier.
"""

import itertools
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from topout.record.outofmemory import record_out_of_memory
from topout.record.recorder import Recorder
from topout.record.settings import Settings
from topout.record.status import StatusLine
from topout.record.torch_taps.device import GOES_ON, DeviceClock
from topout.record.torch_taps.facts import Setup
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
        self.num_spins = 0
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


@pytest.fixture
def device():
    """A stand-in, its clock and the rows that it gave, by phase."""
    cuda = StandInCuda()
    recorder = Recorder(Settings(), StatusLine(None))
    recorder.code = lambda kind, name="": name if kind == Kind.DEVICE else 0
    rows: list[tuple[str, int]] = []
    recorder.emit = lambda row: rows.append((row[0], row[2]))
    return cuda, DeviceClock(SimpleNamespace(cuda=cuda, version=SimpleNamespace(cuda="13.0")), recorder), rows


def step(cuda, clock, copy) -> None:
    """3 ms forward, 6 ms backward, 1 ms optimizer; `copy` comes where the script fetched its batch."""
    clock.mark("input")
    copy()
    for phase, length_ms in (("forward", 3.0), ("backward", 6.0), ("optimizer", 1.0)):
        cuda.times["own"] += length_ms
        clock.mark(phase)


def test_copies_on_the_steps_stream_are_a_phase(device) -> None:
    cuda, clock, rows = device

    def copy() -> None:
        cuda.times["own"] += 2.0
        clock.mark("copy")

    step(cuda, clock, copy)
    step(cuda, clock, copy)
    clock.poll()
    phases = [("input", 0), ("copy", 2_000_000), ("forward", 3_000_000), ("backward", 6_000_000)]
    assert rows[-5:] == [*phases, ("optimizer", 1_000_000)]


@pytest.mark.parametrize("where", ["another stream", "another thread"])
def test_a_loader_that_copies_ahead_disturbs_no_phase(device, where: str) -> None:
    cuda, clock, rows = device

    def ahead() -> None:
        with cuda.on("side" if where == "another stream" else "own"):
            clock.mark("copy")

    def copy() -> None:
        if where == "another stream":
            ahead()
            return
        thread = threading.Thread(target=ahead)
        thread.start()
        thread.join()

    for _ in range(3):
        step(cuda, clock, copy)
    clock.poll()
    assert {phase for phase, _ in rows} == {"input", "forward", "backward", "optimizer"}
    assert sum(length_ns for _, length_ns in rows) == 30_000_000
    assert min(length_ns for _, length_ns in rows) >= 0


def test_a_part_of_the_step_on_another_gpu_is_not_followed(device) -> None:
    cuda, clock, rows = device

    def elsewhere() -> None:
        with cuda.on("other GPU"):
            clock.mark("forward")

    for _ in range(3):
        step(cuda, clock, elsewhere)
    clock.poll()
    assert sum(length_ns for _, length_ns in rows) == 30_000_000


def test_a_device_that_fails_is_not_followed_any_more(device) -> None:
    cuda, clock, _ = device
    recorder = clock._recorder
    recorder.mark = clock.mark
    cuda.is_failing = True
    step(cuda, clock, lambda: None)
    assert recorder.mark is None
    assert "an illegal memory access" in recorder.notes[0]
    clock.step_ended(3)
    assert recorder.mark is None


def end_step(clock, number: int) -> None:
    clock._recorder.num_steps = number + 1
    clock.step_ended(number)


def test_steps_that_were_none_leave_nothing_for_those_that_are_numbered_anew(device) -> None:
    cuda, clock, rows = device
    clock._recorder.mark = clock.mark
    for _ in range(16):
        step(cuda, clock, lambda: None)
    for number in range(15, 30):  # told by backward, from the sixteenth on
        end_step(clock, number)
        step(cuda, clock, lambda: None)
    assert len(rows) >= 16 * 4 - 1
    rows.clear()
    end_step(clock, 0)
    assert rows == []
    assert clock._recorder.mark is not None
    step(cuda, clock, lambda: None)
    end_step(clock, 1)
    assert [phase for phase, _ in rows] == ["forward", "backward", "optimizer"]
    assert [length_ns for _, length_ns in rows] == [3_000_000, 6_000_000, 1_000_000]


LOOP_MS = {GOES_ON: 3.0, "copy": 0.5, "forward": 0.25, "backward": 6.0, "optimizer": 1.0}


def fetching_ahead(cuda, clock, num_steps: int) -> None:
    """As scripts do that copy the next batch while the device still computes the forward of this one."""
    recorder = clock._recorder
    recorder.mark = clock.mark
    for number in range(num_steps):
        for phase, length_ms in LOOP_MS.items() if recorder.mark is not None else ():
            cuda.times["own"] += length_ms
            recorder.mark(phase)
            cuda.is_held = cuda.is_held and phase in (GOES_ON, "copy")
        end_step(clock, number)


def test_a_batch_copied_between_forward_and_backward_does_not_take_forwards_time(device) -> None:
    cuda, clock, rows = device
    fetching_ahead(cuda, clock, 22)
    second = rows[rows.index(("optimizer", 1_000_000)) + 1 :]
    assert second[:3] == [("copy", 500_000), ("forward", 3_000_000), ("forward", 250_000)]
    assert cuda.num_spins == 0


@pytest.fixture
def one_clock(device, monkeypatch):
    """The host takes as long as the device."""
    cuda, clock, rows = device
    monkeypatch.setattr("topout.record.torch_taps.device.now_ns", lambda: round(1e6 * cuda.times["own"]))
    return cuda, clock, rows


def test_what_ran_dry_before_such_a_copy_is_told_apart(one_clock) -> None:
    """The host may have made a batch there, and launched nothing."""
    cuda, clock, rows = one_clock
    cuda.is_dry = True
    fetching_ahead(cuda, clock, 22)
    second = rows[rows.index(("optimizer", 1_000_000)) + 1 :]
    assert second[:3] == [("copy", 500_000), ("forward.dry", 3_000_000), ("forward", 250_000)]
    assert {length_ns for phase, length_ns in rows if phase == "forward.queued"} == {250_000}


def test_what_is_queued_before_such_a_copy_is_work(one_clock) -> None:
    cuda, clock, rows = one_clock
    cuda.is_dry_unless_held = True
    fetching_ahead(cuda, clock, 22)
    queued = [length_ns for phase, length_ns in rows if phase == "forward.queued"]
    assert queued == [3_000_000, 250_000] * 3


GAPS_MS = {"forward": 3.0, "backward": 6.0, "optimizer": 1.0}
WORK_MS = {"forward": 1.0, "backward": 1.5, "optimizer": 0.5}


def slow_host(cuda, clock, num_steps: int, *, recorder) -> None:
    """Steps of a host that launches more slowly than its device works, unless that is held back meanwhile."""
    recorder.mark = clock.mark
    for number in range(num_steps):
        if recorder.mark is not None:
            recorder.mark("input")
            for phase, gaps_ms in GAPS_MS.items():
                cuda.times["own"] += WORK_MS[phase] if cuda.is_held else gaps_ms
                cuda.is_held = False
                recorder.mark(phase)
        end_step(clock, number)


def lengths(rows, name: str) -> set[int]:
    return {length_ns for phase, length_ns in rows if phase == name}


def test_a_device_that_runs_dry_is_held_back_and_shows_what_is_work(device) -> None:
    cuda, clock, rows = device
    cuda.is_dry = True
    slow_host(cuda, clock, 22, recorder=clock._recorder)
    for phase, work_ms in WORK_MS.items():
        assert lengths(rows, f"{phase}.queued") == {round(1e6 * work_ms)}
    assert [phase for phase, _ in rows].count("backward.queued") == 3
    # and steps in which it was held back tell nothing of what nobody held back
    assert lengths(rows, "backward") == {6_000_000}
    assert lengths(rows, "input") == {0}


def test_a_device_that_is_waited_for_once_a_step_is_not_held_back(device) -> None:
    """`loss.item()` between forward and backward: it has run dry at one end of three, and works all the while."""
    cuda, clock, _ = device
    recorder = clock._recorder
    recorder.mark = clock.mark
    for number in range(22):
        for phase, length_ms in GAPS_MS.items() if recorder.mark is not None else ():
            cuda.times["own"] += length_ms
            cuda.is_dry = phase == "forward"
            recorder.mark(phase)
        end_step(clock, number)
    assert cuda.num_spins == 0


def test_among_several_ranks_it_begins_when_their_groups_are_chosen(device) -> None:
    cuda, clock, _ = device
    settings = Settings(world_size=2)
    clock = DeviceClock(
        SimpleNamespace(cuda=cuda, version=SimpleNamespace(cuda="13.0")), Recorder(settings, StatusLine(None))
    )
    cuda.is_dry = True
    slow_host(cuda, clock, 50, recorder=clock._recorder)
    assert cuda.num_spins == 0


def test_nothing_is_held_back_for_the_batches_of_an_evaluation(device) -> None:
    cuda, clock, _ = device
    recorder = clock._recorder
    cuda.is_dry = True
    slow_host(cuda, clock, 12, recorder=recorder)
    held = cuda.num_spins
    assert held > 0 and clock._held_phase is not None
    recorder.is_evaluating = True
    for _ in range(5):
        recorder.mark("input")
        recorder.mark("copy")
    assert cuda.num_spins == held


def test_a_step_of_many_micro_batches_is_held_back_no_longer_than_any(device, monkeypatch) -> None:
    """The host takes 15 ms to launch each of them."""
    cuda, clock, _ = device
    times_ns = itertools.count(0, 5_000_000)
    monkeypatch.setattr("topout.record.torch_taps.device.now_ns", lambda: next(times_ns))
    recorder = clock._recorder
    recorder.mark, cuda.is_dry = clock.mark, True
    spun_ms = []
    for number in range(22):
        before_ms = cuda.times["own"]
        for phase in (*["input", "copy", "forward", "backward"] * 8, "optimizer") if recorder.mark is not None else ():
            recorder.mark(phase)
        end_step(clock, number)
        spun_ms.append(cuda.times["own"] - before_ms)
    assert 0 < max(spun_ms) <= 2 * 20.0  # the end of one step holds for the next


@pytest.mark.parametrize("why", ["has more to do", "is AMD's"])
def test_a_device_is_not_held_back_where_that_would_cost_or_cannot_be_timed(device, why: str) -> None:
    cuda, clock, rows = device
    cuda.is_dry = why == "is AMD's"
    if why == "is AMD's":
        clock = DeviceClock(SimpleNamespace(cuda=cuda, version=SimpleNamespace(cuda=None)), clock._recorder)
    slow_host(cuda, clock, 22, recorder=clock._recorder)
    assert cuda.num_spins == 0
    assert len(rows) > 30
    assert not any(phase.endswith(".queued") for phase, _ in rows)


def test_holding_a_device_back_counts_as_what_following_costs(device, monkeypatch) -> None:
    """The host takes 100 ms for each phase: holding back for them is for one step in hundreds."""
    cuda, clock, _ = device
    times_ns = itertools.count(0, 5_000_000)
    monkeypatch.setattr("topout.record.torch_taps.device.now_ns", lambda: next(times_ns))
    cuda.is_dry = True
    slow_host(cuda, clock, 2000, recorder=clock._recorder)
    assert 9 <= cuda.num_spins < 20


@pytest.mark.parametrize("kind", ["CUDA", "HIP"])
def test_running_out_of_memory_before_the_first_pulse_tells_how_large_the_device_is(monkeypatch, kind: str) -> None:
    cuda = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        current_device=lambda: 0,
        get_device_properties=lambda _: SimpleNamespace(name="NVIDIA H200", total_memory=141 << 30, major=9),
        max_memory_allocated=lambda: 140 << 30,
        memory_allocated=lambda: 139 << 30,
    )
    torch = SimpleNamespace(cuda=cuda, get_num_threads=lambda: 1)
    monkeypatch.setitem(sys.modules, "torch", torch)
    recorder = Recorder(Settings(), StatusLine(None))
    facts: dict[str, Any] = {}
    recorder.fact = lambda **told: facts.update(told)
    recorder.at_pulse = [Setup(recorder).record, DeviceClock(torch, recorder).record_memory]
    record_out_of_memory(RuntimeError(f"{kind} out of memory. Tried to allocate 2.00 GiB."), recorder)
    assert facts["out_of_memory"]["device"] == "cuda"
    assert (facts["device_total_bytes"], facts["peak_device_bytes"]) == (141 << 30, 140 << 30)
