"""Steps cut into phases: tables built by formula come back exactly, and nothing is counted twice."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tables import START_NS, TRAINING_LOADER, Plan, Rows, StepPlan, build_run
from topout.analyze.accelerator import on_device
from topout.analyze.segments import PHASE
from topout.analyze.steps import find_phases, read_phases
from topout.record.row_names import LATE
from topout.schema.event import Flag, Kind
from topout.schema.measures import PHASES
from topout.schema.run_folder import RunFolder
from topout.trace.clocks import align
from topout.trace.readers.topout import read_run

MS = 1_000_000


@st.composite
def _plans(draw: st.DrawFn) -> tuple[list[list[StepPlan]], Plan]:
    num_ranks, num_steps = draw(st.integers(1, 4)), draw(st.integers(2, 6))
    optimizer = draw(st.integers(0, 50))

    def step() -> StepPlan:
        lengths = {name: draw(st.integers(0, 1000)) for name in ("other", "input", "copy", "evaluation", "checkpoint")}
        compute = {name: draw(st.integers(1, 1000)) for name in ("forward", "backward")}
        return StepPlan(optimizer=optimizer, **lengths, **compute)

    shows_by = draw(st.sampled_from(["row", "mode", "loader"]))
    plan = Plan(transfer_ns=draw(st.integers(0, 200)), num_buckets=draw(st.integers(1, 3)), evaluation_by=shows_by)
    return [[step() for _ in range(num_steps)] for _ in range(num_ranks)], plan


@settings(deadline=None, max_examples=60)
@given(planned=_plans())
def test_a_table_built_by_formula_comes_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, planned: tuple[list[list[StepPlan]], Plan]
) -> None:
    built = build_run(tmp_path_factory.mktemp("run") / "run", *planned)
    phases = read_phases(built.folder)
    assert phases is not None
    assert np.array_equal(phases.phase_ns, built.phase_ns[:, phases.num_warmup_steps :])
    assert np.array_equal(phases.phase_ns.sum(axis=2), phases.duration_ns)
    assert (phases.duration_ns.sum(axis=1) == phases.elapsed_ns).all()


@settings(deadline=None, max_examples=30)
@given(
    optimizer=st.lists(st.integers(0, 400), min_size=2, max_size=4),
    trail=st.lists(st.integers(0, 3000), min_size=4, max_size=4),
)
def test_ranks_out_of_step_still_share_one_window(
    tmp_path_factory: pytest.TempPathFactory, optimizer: list[int], trail: list[int]
) -> None:
    ranks = [[StepPlan(input=30, forward=100, backward=200, optimizer=length)] * 5 for length in optimizer]
    plan = Plan(transfer_ns=10, trail_evaluation_ns=trail[: len(ranks)])
    built = build_run(tmp_path_factory.mktemp("run") / "run", ranks, plan)
    phases = read_phases(built.folder)
    assert phases is not None
    assert (phases.edges_ns[:, 0] == built.ends_ns[:, phases.num_warmup_steps - 1].max()).all()
    assert (phases.duration_ns.sum(axis=1) == phases.elapsed_ns).all()
    assert np.array_equal(phases.phase_ns.sum(axis=2), phases.duration_ns)
    assert np.array_equal(phases.phase_ns[:, 1:-1], built.phase_ns[:, phases.num_warmup_steps + 1 : -1])


class OneRank:
    """A rank with steps of 1000 ns each; rows are placed by hand into step 2."""

    def __init__(self, folder: Path) -> None:
        self.folder = RunFolder(folder)
        self.rows = Rows()
        for step in range(4):
            start = 1000 * step
            self.rows.add(Kind.STEP, START_NS + start, 1000, ref=step)
            self.rows.add(Kind.INPUT, START_NS + start, 0, value=4, ref=TRAINING_LOADER)
            if step != 2:
                self.rows.add(Kind.BACKWARD, START_NS + start + 400, 500)

    def add(self, kind: Kind, start: int, end: int, **more: object) -> None:
        self.rows.add(kind, START_NS + 2000 + start, end - start, **more)  # type: ignore[arg-type]

    def phases(self) -> dict[str, int]:
        self.folder.events(0).write_bytes(b"".join(self.rows.blocks({"host": "n01"})))
        found = find_phases(align(read_run(self.folder)))
        assert found is not None
        step = found.phase_ns[0, list(found.steps).index(2)]
        assert step.sum() == 1000
        return {name: int(ns) for name, ns in zip(PHASES, step, strict=True) if ns}


@pytest.fixture
def rank(tmp_path: Path) -> OneRank:
    return OneRank(tmp_path)


def test_forward_is_what_lies_before_a_backward(rank: OneRank) -> None:
    rank.add(Kind.INPUT, 100, 200, value=4, ref=TRAINING_LOADER)
    rank.add(Kind.BACKWARD, 500, 800)
    rank.add(Kind.OPTIMIZER, 850, 1000)
    assert rank.phases() == {"input": 100, "forward": 300, "backward": 300, "optimizer": 150, "other": 150}


def test_every_micro_batch_has_its_forward(rank: OneRank) -> None:
    rank.add(Kind.BACKWARD, 200, 400)
    rank.add(Kind.INPUT, 450, 500, value=4, ref=TRAINING_LOADER)
    rank.add(Kind.BACKWARD, 600, 900)
    assert rank.phases() == {"forward": 300, "input": 50, "backward": 500, "other": 150}


def test_a_copy_in_the_middle_of_a_forward_does_not_end_it(rank: OneRank) -> None:
    rank.add(Kind.INPUT, 0, 100, value=4, ref=TRAINING_LOADER)
    rank.add(Kind.COPY, 300, 350, value=64)
    rank.add(Kind.BACKWARD, 500, 1000)
    assert rank.phases() == {"input": 100, "forward": 350, "copy": 50, "backward": 500}


def test_a_copy_inside_input_counts_once(rank: OneRank) -> None:
    rank.add(Kind.INPUT, 0, 400, value=4, ref=TRAINING_LOADER)
    rank.add(Kind.COPY, 100, 200, value=64)
    rank.add(Kind.BACKWARD, 400, 1000)
    assert rank.phases() == {"input": 300, "copy": 100, "backward": 600}


def test_a_closure_runs_inside_its_optimizer(rank: OneRank) -> None:
    rank.add(Kind.OPTIMIZER, 100, 900)
    rank.add(Kind.BACKWARD, 300, 500)
    assert rank.phases() == {"forward": 200, "backward": 200, "optimizer": 400, "other": 200}


def test_what_an_optimizer_does_between_two_closures_is_its_own(rank: OneRank) -> None:
    rank.add(Kind.OPTIMIZER, 100, 900)
    rank.add(Kind.CLOSURE, 150, 350)
    rank.add(Kind.BACKWARD, 250, 350)
    rank.add(Kind.CLOSURE, 600, 800)
    rank.add(Kind.BACKWARD, 700, 800)
    assert rank.phases() == {"forward": 200, "backward": 200, "optimizer": 400, "other": 200}


def test_a_backward_inside_a_backward_counts_once(rank: OneRank) -> None:
    rank.add(Kind.BACKWARD, 200, 900)
    rank.add(Kind.BACKWARD, 400, 600)
    assert rank.phases() == {"forward": 200, "backward": 700, "other": 100}


def test_another_thread_takes_no_time_of_the_rank(rank: OneRank) -> None:
    rank.add(Kind.CHECKPOINT, 0, 900, flags=Flag.OFF_MAIN_THREAD)
    rank.add(Kind.BACKWARD, 500, 1000)
    assert rank.phases() == {"forward": 500, "backward": 500}


def test_a_checkpoint_inside_an_evaluation_is_a_checkpoint(rank: OneRank) -> None:
    rank.add(Kind.EVALUATION, 0, 400)
    rank.add(Kind.CHECKPOINT, 100, 250)
    rank.add(Kind.BACKWARD, 500, 1000)
    assert rank.phases() == {"evaluation": 250, "checkpoint": 150, "forward": 100, "backward": 500}


def test_a_collective_that_waits_for_nobody_belongs_to_its_evaluation(rank: OneRank) -> None:
    rank.add(Kind.EVALUATION, 0, 400)
    rank.add(Kind.COLLECTIVE, 300, 380, name="all_reduce", value=8, ref=5)
    rank.add(Kind.BACKWARD, 500, 1000)
    assert rank.phases() == {"evaluation": 400, "forward": 100, "backward": 500}


def test_a_collective_of_its_own_is_transfer(rank: OneRank) -> None:
    rank.add(Kind.BACKWARD, 400, 800)
    rank.add(Kind.COLLECTIVE, 850, 950, name="all_reduce", value=8, ref=5)
    assert rank.phases() == {"forward": 400, "backward": 400, "transfer": 100, "other": 100}


def test_device_time_takes_the_place_of_launches(rank: OneRank) -> None:
    rank.add(Kind.INPUT, 0, 300, value=4, ref=TRAINING_LOADER)
    rank.add(Kind.COPY, 300, 320, value=64)
    rank.add(Kind.BACKWARD, 350, 400)
    for name, length in (("input", 100), ("copy", 30), ("forward", 220), ("backward", 400), ("optimizer", 50)):
        rank.add(Kind.DEVICE, 0, length, name=name, ref=2)
    # the device works for 700 of 1000 ns and starves for the rest, while the host waits for its batch
    assert rank.phases() == {
        "input": 300, "copy": 30, "forward": 220, "backward": 400, "optimizer": 50
    }  # fmt: skip


def test_a_device_interval_below_zero_takes_nothing_from_the_others(rank: OneRank) -> None:
    """As recordings have it in which a loader's own stream was marked, too."""
    rank.add(Kind.BACKWARD, 350, 400)
    rank.add(Kind.DEVICE, 0, 300, name="forward", ref=2)
    rank.add(Kind.DEVICE, 300, 100, name="copy", ref=2)
    rank.add(Kind.DEVICE, 0, 600, name="backward", ref=2)
    assert rank.phases() == {"forward": 300, "backward": 600, "other": 100}


@pytest.mark.parametrize("is_dry", [True, False])
def test_gaps_in_what_a_device_did_are_the_hosts(rank: OneRank, is_dry: bool) -> None:
    """In other steps it was held back before forward and backward, and took a quarter and a half of the time.

    So it waited, and be it for small kernels before a large one that it was still at when the host was done.
    """
    rank.add(Kind.INPUT, 0, 50)
    rank.add(Kind.BACKWARD, 350, 400)
    for name, length in (("forward", 400), ("backward", 400), ("optimizer", 100)):
        rank.add(Kind.DEVICE, 0, length, name=name, ref=2, value=int(is_dry))
    for step in (3, 4, 5):
        rank.add(Kind.DEVICE, 0, 100, name="forward.queued", ref=step)
        rank.add(Kind.DEVICE, 0, 200, name="backward.queued", ref=step)
    rank.add(Kind.DEVICE, 0, 10, name="optimizer.queued", ref=6)  # one is none
    assert rank.phases() == {"input": 50, "forward": 100, "backward": 200, "optimizer": 100, "other": 550}


def test_a_device_that_ended_with_more_to_do_worked_as_long_as_in_the_longest_step_without_a_gap(rank: OneRank) -> None:
    """Steps differ, and one that was quicker than others does not show that the others had gaps."""
    rank.add(Kind.BACKWARD, 500, 400)
    for name, length in (("forward", 400), ("backward", 600)):
        rank.add(Kind.DEVICE, 0, length, name=name, ref=2, value=0)
    for step, length in ((3, 360), (4, 410), (5, 350)):
        rank.add(Kind.DEVICE, 0, length, name="forward.queued", ref=step)
        rank.add(Kind.DEVICE, 0, length, name="backward.queued", ref=step)
    assert rank.phases() == {"forward": 400, "backward": 410, "other": 190}


def test_a_device_whose_batches_differ_is_not_found_idle_by_a_long_one(rank: OneRank) -> None:
    """Queued steps of 300 and 400 beside one of 1000 and one of 350: the longest against the shortest."""
    rank.add(Kind.BACKWARD, 500, 400)
    for step, length in ((1, 350), (2, 1000)):
        rank.add(Kind.DEVICE, 0, length, name="forward", ref=step, value=0)
    for step, length in ((3, 300), (4, 400), (5, 300)):
        rank.add(Kind.DEVICE, 0, length, name="forward.queued", ref=step)
    assert rank.phases() == {"forward": 1000}


@pytest.mark.parametrize("num_timely", [3, 2])
def test_what_was_queued_too_late_counts_where_nothing_better_is_known(rank: OneRank, num_timely: int) -> None:
    rank.add(Kind.BACKWARD, 500, 400)
    rank.add(Kind.DEVICE, 0, 400, name="forward", ref=2, value=1)
    rank.add(Kind.DEVICE, 0, 600, name="backward", ref=2, value=0)
    for step in (3, 4, 5, 6, 7)[5 - num_timely :]:
        rank.add(Kind.DEVICE, 0, 100, name="forward.queued", ref=step, value=0)
    for step in (8, 9, 10):
        rank.add(Kind.DEVICE, 0, 200, name="forward.queued", ref=step, value=LATE)
    worked = 100 if num_timely == 3 else 200
    assert rank.phases() == {"forward": worked, "backward": 600, "other": 400 - worked}


def test_what_ended_with_more_to_do_is_work_once(rank: OneRank) -> None:
    """The host was elsewhere for 300; forward takes 100 and ends with more to do."""
    rank.add(Kind.BACKWARD, 500, 400)
    rank.add(Kind.DEVICE, 0, 300, name="forward.dry", ref=2, value=1)
    rank.add(Kind.DEVICE, 0, 100, name="forward", ref=2, value=0)
    rank.add(Kind.DEVICE, 0, 400, name="backward", ref=2, value=1)
    for step in (3, 4, 5):
        rank.add(Kind.DEVICE, 0, 100, name="forward.queued", ref=step)
        rank.add(Kind.DEVICE, 0, 200, name="backward.queued", ref=step)
    assert rank.phases() == {"forward": 100, "backward": 200, "other": 700}


@pytest.mark.parametrize("is_queued", [True, False])
def test_a_device_that_ran_dry_before_a_copy_worked_as_far_as_it_is_known_to(rank: OneRank, is_queued: bool) -> None:
    """The host was elsewhere for 300, as far as the device tells; held back, it took 100 until the end of forward."""
    rank.add(Kind.BACKWARD, 500, 400)
    rank.add(Kind.DEVICE, 0, 300, name="forward.dry", ref=2, value=1)
    rank.add(Kind.DEVICE, 0, 100, name="forward", ref=2, value=1)
    rank.add(Kind.DEVICE, 0, 500, name="backward", ref=2, value=0)
    for step in (3, 4, 5) if is_queued else ():
        rank.add(Kind.DEVICE, 0, 200, name="forward.queued", ref=step)
    assert rank.phases() == {"forward": 200 if is_queued else 100, "backward": 500, "other": 300 if is_queued else 400}


@pytest.mark.parametrize("waits", [True, False])
def test_short_steps_leave_work_behind_only_where_the_device_has_more_to_do_in_them(waits: bool) -> None:
    """Batches of two lengths, 5 of input in each step; the host waits for its device in every step, or now and then."""
    lengths = [5, 5, 40, 40] * 25
    host_ns = np.zeros((100, len(PHASES)), dtype=np.int64)
    host_ns[:, PHASE["input"]] = 5
    host_ns[:, PHASE["backward"]] = lengths
    busy_ns = np.zeros((100, 5), dtype=np.int64)
    busy_ns[::10, 2] = [lengths[step] if waits else 22 for step in range(0, 100, 10)]
    found = on_device(host_ns, busy_ns)[:, PHASE["input"]].sum()
    assert found == 500 if waits else found < 250


def test_steps_that_were_not_followed_are_like_those_that_were() -> None:
    host_ns = np.zeros((3, len(PHASES)), dtype=np.int64)
    host_ns[:, PHASE["other"]] = [1000, 2000, 1000]
    host_ns[2, PHASE["evaluation"]] = 500
    busy_ns = np.array([[0, 250, 750, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]], dtype=np.int64)
    found = on_device(host_ns, busy_ns)
    assert found[:, PHASE["forward"]].tolist() == [250, 500, 250]
    assert found[:, PHASE["backward"]].tolist() == [750, 1500, 750]
    assert found[:, PHASE["evaluation"]].tolist() == [0, 0, 500]
    assert found.sum(axis=1).tolist() == host_ns.sum(axis=1).tolist()


def _followed(lengths: list[int], held: dict[int, int], followed: range, phase: str = "input") -> np.ndarray:
    """Steps in which the host was held in a phase, on a device that worked for 20 in each that was followed."""
    host_ns = np.zeros((len(lengths), len(PHASES)), dtype=np.int64)
    for step, length in held.items():
        host_ns[step, PHASE[phase]] = length
    host_ns[:, PHASE["backward"]] = np.array(lengths) - host_ns.sum(axis=1)
    busy_ns = np.zeros((len(lengths), 5), dtype=np.int64)
    busy_ns[followed, 1], busy_ns[followed, 2] = 5, 15
    found = on_device(host_ns, busy_ns)
    assert found.sum(axis=1).tolist() == lengths
    return found


@pytest.mark.parametrize("first_followed", [0, 7])
def test_input_that_the_host_saw_counts_in_steps_that_were_not_followed(first_followed: int) -> None:
    """Two epochs of 50 steps, each begun by a loader that starts for 500: in steps that are followed, or in none."""
    lengths = [520 if step % 50 == 0 else 20 for step in range(100)]
    found = _followed(lengths, {0: 500, 50: 500}, range(first_followed, 100, 25))
    assert found[:, PHASE["input"]].sum() == 1000
    assert found[:, PHASE["forward"]].sum() == 5 * 100
    assert found[:, PHASE["backward"]].sum() == 15 * 100


def test_waiting_for_a_peer_counts_in_steps_that_were_not_followed() -> None:
    found = _followed([20, 20, 400, 20], {2: 380}, range(1), phase="wait")
    assert found[:, PHASE["wait"]].tolist() == [0, 0, 380, 0]


def test_input_hidden_behind_the_device_costs_nothing_in_steps_that_were_not_followed() -> None:
    found = _followed([20] * 6, dict.fromkeys(range(6), 12), range(2))
    assert found[:, PHASE["input"]].sum() == 0


@pytest.mark.parametrize("followed", [range(2, 4), range(10)])
def test_a_barrier_that_lets_the_device_catch_up_is_no_waiting(followed: range) -> None:
    """The host launches nine steps in 4 each, and waits in the tenth until the device is through."""
    found = _followed([20, *[4] * 8, 148], {9: 144}, followed, phase="wait")
    assert found[:, PHASE["wait"]].sum() == 0
    assert found[:, [PHASE["forward"], PHASE["backward"]]].sum() == 200


@pytest.mark.parametrize("lengths", [[2, 38], [2, 38, 20]])
@pytest.mark.parametrize("followed", [range(6), range(0, 60, 25)])
def test_a_device_that_the_host_lets_catch_up_every_few_steps_is_never_idle(lengths, followed) -> None:
    """`loss.item()` in every second or third step: short ones launch only, long ones wait."""
    found = _followed(lengths * (60 // len(lengths)), {}, followed)
    assert found[:, PHASE["other"]].sum() <= 0.05 * found.sum()


def test_steps_shorter_than_those_followed_hide_no_input() -> None:
    """Following holds a busy host up by 10, and its device with it: the others left nothing behind."""
    found = _followed([30, 30, *[20] * 20], dict.fromkeys(range(22), 10), range(2))
    assert found[:, PHASE["input"]].tolist() == [10] * 22


def test_steps_of_unequal_length_add_up_to_no_lag() -> None:
    """The host waits for its device in every step; those that were followed happened to be long ones."""
    found = _followed([20, 20, *[20, 20, 20, 15, 15] * 10, 60], {52: 40}, range(2))
    assert found[:, PHASE["input"]].sum() == 40


def test_input_behind_a_busy_device_costs_nothing(rank: OneRank) -> None:
    rank.add(Kind.INPUT, 0, 900, value=4, ref=TRAINING_LOADER)
    rank.add(Kind.BACKWARD, 950, 1000)
    for name, length in (("forward", 400), ("backward", 590)):
        rank.add(Kind.DEVICE, 0, length, name=name, ref=2)
    assert rank.phases() == {"input": 10, "forward": 400, "backward": 590}


def test_steps_before_the_flight_recorders_memory_are_left_out(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for rank_number in range(2):
        rows = Rows()
        for step in range(6):
            start = START_NS + 1000 * step
            rows.add(Kind.STEP, start, 1000, ref=step)
            rows.add(Kind.BACKWARD, start + 200, 800)
            if step >= 3:
                rows.add(Kind.ARRIVAL, start + 900, name="all_reduce", value=64, ref=100 + step)
        folder.events(rank_number).write_bytes(b"".join(rows.blocks({"host": "n01"})))
    phases = read_phases(folder)
    assert phases is not None
    assert phases.starts_late
    assert phases.steps.tolist() == [4, 5]
