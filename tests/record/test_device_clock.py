"""The device clock marks what the steps' own stream does, whatever else copies to the device meanwhile."""

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests.record.stand_in_cuda import end_step, made
from topout.record.outofmemory import record_out_of_memory
from topout.record.recorder import Recorder
from topout.record.settings import Settings
from topout.record.status import StatusLine
from topout.record.torch_taps.device import DeviceClock
from topout.record.torch_taps.facts import Setup


@pytest.fixture
def device():
    return made()


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
    torch = SimpleNamespace(cuda=cuda, get_num_threads=lambda: 1, is_grad_enabled=lambda: True)
    monkeypatch.setitem(sys.modules, "torch", torch)
    recorder = Recorder(Settings(), StatusLine(None))
    facts: dict[str, Any] = {}
    recorder.fact = lambda **told: facts.update(told)
    recorder.at_pulse = [Setup(recorder).record, DeviceClock(torch, recorder).record_memory]
    record_out_of_memory(RuntimeError(f"{kind} out of memory. Tried to allocate 2.00 GiB."), recorder)
    assert facts["out_of_memory"]["device"] == "cuda"
    assert (facts["device_total_bytes"], facts["peak_device_bytes"]) == (141 << 30, 140 << 30)
