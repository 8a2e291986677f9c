"""A device that runs dry is held back now and then, and shows how much of its time is work."""

import itertools
import subprocess
import sys

import pytest
import torch

from tests.record.stand_in_cuda import end_step, made, torch_of
from topout.record.recorder import Recorder
from topout.record.row_names import LATE
from topout.record.settings import Settings
from topout.record.status import StatusLine
from topout.record.torch_taps.device import GOES_ON, DeviceClock
from topout.record.torch_taps.next_call import NextCall


@pytest.fixture
def device(monkeypatch):
    """Held back for long enough, however busy this machine is."""
    monkeypatch.setattr("topout.record.torch_taps.held_back.now_ns", lambda: 1 << 61)
    return made()


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
    # held back it was dry there all the same: for longer than it is held
    assert cuda.num_spins > 0
    assert lengths(rows, "forward.queued") == set()


def test_a_forward_between_the_copies_of_images_and_labels_is_work(one_clock) -> None:
    """`criterion(model(x.to(device)), y.to(device))`: most of it lies between the two."""
    cuda, clock, rows = one_clock
    cuda.is_dry_unless_held = True
    recorder = clock._recorder
    recorder.mark = clock.mark
    loop_ms = (("input", 0.125), (GOES_ON, 0.125), ("copy", 0.5), (GOES_ON, 3.0), ("copy", 0.5), ("forward", 0.25))
    for number in range(22):
        for phase, length_ms in (*loop_ms, ("backward", 6.0), ("optimizer", 1.0)) if recorder.mark is not None else ():
            cuda.times["own"] += length_ms
            recorder.mark(phase)
            cuda.is_held = cuda.is_held and phase in (GOES_ON, "copy")
        end_step(clock, number)
    second = rows[rows.index(("optimizer", 1_000_000)) + 1 :]
    labels = [("forward.dry", 125_000), ("forward", 3_000_000), ("forward", 250_000)]
    assert [row for row in second[:6] if row[0].startswith("forward")] == labels
    assert [length_ns for phase, length_ns in rows if phase == "forward.queued"] == [3_000_000, 250_000] * 3


def test_what_is_queued_before_such_a_copy_is_work(one_clock) -> None:
    cuda, clock, rows = one_clock
    cuda.is_dry_unless_held = True
    fetching_ahead(cuda, clock, 22)
    queued = [length_ns for phase, length_ns in rows if phase == "forward.queued"]
    assert queued == [3_000_000, 250_000] * 3


GAPS_MS = {"forward": 3.0, "backward": 6.0, "optimizer": 1.0}
WORK_MS = {"forward": 1.0, "backward": 1.5, "optimizer": 0.5}


def slow_host(cuda, clock, num_steps: int, *, recorder) -> list[int]:
    """Steps of a host that launches more slowly than its device works, unless that is held back meanwhile.

    Returns those in which it was.
    """
    recorder.mark = clock.mark
    held_in = []
    for number in range(num_steps):
        before = cuda.num_spins
        if recorder.mark is not None:
            recorder.mark("input")
            for phase, gaps_ms in GAPS_MS.items():
                cuda.times["own"] += WORK_MS[phase] if cuda.is_held else gaps_ms
                cuda.is_held = False
                recorder.mark(phase)
        if cuda.num_spins > before:
            held_in.append(number)
        end_step(clock, number)
    return held_in


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


def test_a_device_that_is_waited_for_once_a_step_is_not_held_back_at_once(device) -> None:
    """`loss.item()` between forward and backward: it has run dry at one end of three, and may work all the while."""
    cuda, clock, _ = device
    recorder = clock._recorder
    recorder.mark = clock.mark
    for number in range(30):
        for phase, length_ms in GAPS_MS.items() if recorder.mark is not None else ():
            cuda.times["own"] += length_ms
            cuda.is_dry = phase == "forward"
            recorder.mark(phase)
        end_step(clock, number)
    assert cuda.num_spins == 0


def test_a_device_that_never_ran_dry_is_held_back_in_nine_steps_with_others_beside_them(device) -> None:
    """It may have waited for small kernels before a large one, which it is at when the host is done with a phase."""
    cuda, clock, rows = device
    held_in = slow_host(cuda, clock, 200, recorder=clock._recorder)
    assert held_in == list(range(40, 49))
    for phase, work_ms in WORK_MS.items():
        assert [length for name, length in rows if name == f"{phase}.queued"] == [round(1e6 * work_ms)] * 3
        assert lengths(rows, phase) == {round(1e6 * GAPS_MS[phase])}


@pytest.mark.parametrize("is_dry", [True, False])
def test_among_several_ranks_all_begin_with_one_step_when_their_groups_are_chosen(device, is_dry: bool) -> None:
    cuda, _, _ = device
    clock = DeviceClock(torch_of(cuda), Recorder(Settings(world_size=2), StatusLine(None)))
    cuda.is_dry = is_dry
    held_in = slow_host(cuda, clock, 70, recorder=clock._recorder)
    assert held_in[:9] == list(range(60, 69))


def test_nothing_is_held_back_for_the_batches_of_an_evaluation(device) -> None:
    cuda, clock, _ = device
    recorder = clock._recorder
    cuda.is_dry = True
    slow_host(cuda, clock, 12, recorder=recorder)
    held = cuda.num_spins
    assert held > 0 and clock._held_phase is not None
    cuda.is_evaluating = True
    for _ in range(5):
        recorder.mark("input")
        recorder.mark("copy")
    assert cuda.num_spins == held


def test_of_several_micro_batches_all_are_held_back_or_none_is_told(device) -> None:
    """Gradients of four add up; the optimizer is held back for behind the last of them alone."""
    cuda, clock, rows = device
    recorder = clock._recorder
    recorder.mark, cuda.is_dry = clock.mark, True
    spins = []
    for number in range(22):
        before = cuda.num_spins
        for phase in (*["input", "forward", "backward"] * 4, "optimizer") if recorder.mark is not None else ():
            work_ms, gaps_ms = WORK_MS.get(phase, 0.0), GAPS_MS.get(phase, 0.0)
            cuda.times["own"] += work_ms if cuda.is_held else gaps_ms
            cuda.is_held = False
            recorder.mark(phase)
        end_step(clock, number)
        spins.append(cuda.num_spins - before)
    of_a_step = {count for count in spins if count}
    assert of_a_step == {1, 4}
    assert lengths(rows, "optimizer.queued") == {500_000}
    assert [phase for phase, _ in rows].count("forward.queued") == 12


def test_a_phase_that_began_where_it_never_had_is_not_told_as_queued(device) -> None:
    cuda, clock, rows = device
    recorder = clock._recorder
    cuda.is_dry = True
    slow_host(cuda, clock, 11, recorder=recorder)
    while clock._held_phase != "forward":
        end_step(clock, recorder.num_steps)
    cuda.times["own"] += 3.0
    recorder.mark("forward")  # without an input before it
    end_step(clock, recorder.num_steps)
    assert lengths(rows, "forward.queued") == set()


@pytest.fixture
def called(monkeypatch):
    """A device whose host has a clock of its own, in milliseconds, and calls a module."""
    cuda, clock, rows = made(torch.nn.modules.module)
    # by another test of this process
    monkeypatch.setattr("topout.record.torch_taps.next_call.may_compile", lambda: False)
    host_ms = [0.0]
    for place in ("device", "held_back"):
        monkeypatch.setattr(f"topout.record.torch_taps.{place}.now_ns", lambda: round(1e6 * host_ms[0]))
    cuda.is_dry = True
    clock._recorder.mark = clock.mark
    yield cuda, clock, rows, host_ms
    assert not torch.nn.modules.module._global_forward_pre_hooks


def calling(cuda, clock, host_ms: list[float], *, before=lambda: None, forward_ms: float = 3.0) -> None:
    """Steps that wait for their device at the end, as for the loss, and for whatever holds it then."""
    recorder, model = clock._recorder, torch.nn.Identity()
    for number in range(40):
        host_ms[0] += 30.0 if cuda.is_held else 2.0
        cuda.is_held = False
        before()
        model(None)
        if recorder.mark is not None:
            for phase, gaps_ms in GAPS_MS.items():
                host_ms[0] += forward_ms if phase == "forward" and cuda.is_held else gaps_ms
                cuda.times["own"] += WORK_MS[phase] if cuda.is_held else gaps_ms
                cuda.is_held = False
                recorder.mark(phase)
        end_step(clock, number)


def test_a_host_that_waits_for_the_device_first_holds_it_back_when_it_calls_its_model(called) -> None:
    """`total += loss.item()` after the step: whoever held it back before would be waited for as well."""
    cuda, clock, rows, host_ms = called
    calling(cuda, clock, host_ms)
    for phase in ("forward", "backward"):
        assert [length for name, length in rows if name == f"{phase}.queued"] == [round(1e6 * WORK_MS[phase])] * 3


def test_what_the_host_did_not_keep_up_with_is_told_as_such_and_tried_again(called) -> None:
    """A model that waits for its device in the middle, or that takes longer to launch than a device is held back."""
    cuda, clock, _, host_ms = called
    values: list[tuple[str, int]] = []
    tell = clock._recorder.emit
    clock._recorder.emit = lambda row: (tell(row), values.append((row[0], row[3])))
    calling(cuda, clock, host_ms, forward_ms=30.0)
    assert [value for name, value in values if name == "forward.queued"] == [LATE] * 6
    assert [value for name, value in values if name == "backward.queued"] == [1] * 6


def test_what_the_device_does_for_a_batch_before_its_model_is_called_is_work(called) -> None:
    """`model(features[ids])`, all of it on the device."""
    cuda, clock, rows, host_ms = called

    def gather() -> None:
        cuda.num_allocations += 1
        cuda.times["own"] += 2.0

    calling(cuda, clock, host_ms, before=gather)
    assert [length for name, length in rows if name == "forward.queued"] == [2_000_000, 1_000_000] * 3


def test_a_teacher_that_is_called_first_is_not_what_is_held_back_for(called) -> None:
    cuda, clock, rows, host_ms = called

    def teach() -> None:
        cuda.is_evaluating = True
        torch.nn.Identity()(None)
        cuda.is_evaluating = False

    calling(cuda, clock, host_ms, before=teach)
    assert lengths(rows, "forward.queued") == {1_000_000}


@pytest.mark.parametrize("is_called", [True, False])
def test_nobody_listens_for_calls_where_something_is_compiled(monkeypatch, is_called: bool) -> None:
    """What was compiled without the hook would be compiled again, and no whole graph could be made with it."""
    compiled = torch.compile(torch.nn.Identity(), backend="eager", fullgraph=True)
    if is_called:
        compiled(torch.ones(1))
    else:
        # of another test of this process
        monkeypatch.setattr("topout.record.torch_taps.uncompiled.has_compiled", lambda: False)
    heard = []
    assert not NextCall(torch).await_with(lambda: not heard.append(1))
    torch.nn.Identity()(None)
    assert heard == []


def test_somebody_listens_where_something_is_only_kept_from_being_compiled() -> None:
    code = (
        "import torch, torch._dynamo; from topout.record.torch_taps.uncompiled import may_compile\n"
        "torch._dynamo.disable(torch.nn.Identity())(torch.ones(1))\n"
        "optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], 0.1)\n"
        "optimizer.zero_grad(); optimizer.step()\n"
        "print(may_compile()); torch.compile(torch.nn.Identity()); print(may_compile())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


@pytest.mark.parametrize("is_dry", [True, False])
def test_a_device_is_not_held_back_where_that_cannot_be_timed(device, is_dry: bool) -> None:
    """AMD's."""
    cuda, clock, rows = device
    cuda.is_dry = is_dry
    clock = DeviceClock(torch_of(cuda, None), clock._recorder)
    slow_host(cuda, clock, 100, recorder=clock._recorder)
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
