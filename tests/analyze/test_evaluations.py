"""Evaluations: found by rows, by the model's mode and by loaders, between steps and after the last."""

from pathlib import Path

import numpy as np
import pytest

from tests.tables import START_NS, Plan, Rows, StepPlan, build_run
from topout.analyze.evaluations import feeds_training, find_evaluations, trails_off
from topout.analyze.segments import PHASE
from topout.analyze.steps import read_phases
from topout.schema.event import Kind
from topout.schema.run_folder import RunFolder
from topout.trace.readers.topout import read_rank
from topout.trace.table import RankTable

PLAIN = StepPlan(input=10, forward=100, backward=200, optimizer=20)


def _table(tmp_path: Path, rows: Rows, **facts: object) -> RankTable:
    RunFolder(tmp_path).events(0).write_bytes(b"".join(rows.blocks(dict(facts))))
    return read_rank(RunFolder(tmp_path), 0)


def _found(table: RankTable, end: int = 9999) -> list[tuple[int, int]]:
    found = find_evaluations(table, START_NS + end)
    return sorted({(int(a) - START_NS, int(b) - START_NS) for a, b in zip(found.start_ns, found.end_ns, strict=True)})


def _row(rows: Rows, kind: Kind, start: int, end: int | None = None, **more: int) -> None:
    rows.add(kind, START_NS + start, (end if end is not None else start) - start, **more)


def test_evaluation_mode_reaches_to_the_next_training_batch(tmp_path: Path) -> None:
    rows = Rows()
    for start in (0, 1000, 2000):
        _row(rows, Kind.INPUT, start, start + 10, value=4, ref=0)
        _row(rows, Kind.BACKWARD, start + 100, start + 200)
    _row(rows, Kind.MODE, 1300, value=0)
    _row(rows, Kind.MODE, 1800, value=1)
    assert _found(_table(tmp_path, rows)) == [(1300, 2000)]


def test_without_a_loader_the_return_to_training_ends_it(tmp_path: Path) -> None:
    rows = Rows()
    for start in (0, 1000):
        _row(rows, Kind.BACKWARD, start + 100, start + 200)
    _row(rows, Kind.MODE, 300, value=0)
    _row(rows, Kind.MODE, 800, value=1)
    assert _found(_table(tmp_path, rows)) == [(300, 800)]


def test_a_frozen_layer_in_evaluation_mode_is_no_evaluation(tmp_path: Path) -> None:
    rows = Rows()
    for start in (0, 1000):
        _row(rows, Kind.INPUT, start, start + 10, value=4, ref=0)
        _row(rows, Kind.MODE, start + 20, value=1)
        _row(rows, Kind.MODE, start + 21, value=0)
        _row(rows, Kind.BACKWARD, start + 100, start + 200)
    found = _found(_table(tmp_path, rows), end=1021)
    assert sum(end - start for start, end in found) == 0


def test_two_loaders_that_feed_one_backward_both_train(tmp_path: Path) -> None:
    rows = Rows()
    for start in (0, 1000, 2000):
        _row(rows, Kind.INPUT, start, start + 10, value=4, ref=0)
        _row(rows, Kind.INPUT, start + 10, start + 30, value=4, ref=1)
        _row(rows, Kind.BACKWARD, start + 100, start + 200)
    assert _found(_table(tmp_path, rows)) == []


def test_epochs_of_one_batch_train(tmp_path: Path) -> None:
    rows = Rows()
    for number, start in enumerate((0, 1000, 2000)):
        _row(rows, Kind.LOADER, start, value=4, ref=number)
        _row(rows, Kind.INPUT, start, start + 5, value=0, ref=number)
        _row(rows, Kind.INPUT, start + 5, start + 30, value=4, ref=number)
        _row(rows, Kind.BACKWARD, start + 100, start + 200)
    assert _found(_table(tmp_path, rows)) == []


def test_epochs_of_one_batch_train_while_a_teacher_is_in_evaluation_mode(tmp_path: Path) -> None:
    rows = Rows()
    _row(rows, Kind.MODE, 0, value=0)
    for number, start in enumerate((10, 1000, 2000)):
        _row(rows, Kind.INPUT, start, start + 30, value=4, ref=number)
        _row(rows, Kind.BACKWARD, start + 100, start + 200)
    table = _table(tmp_path, rows)
    assert _found(table) == [(0, 10)]
    assert feeds_training(table, table.rows(Kind.INPUT), table.start_ns[table.rows(Kind.BACKWARD)]).all()


def test_evaluations_of_one_batch_beside_hand_made_training_evaluate(tmp_path: Path) -> None:
    rows = Rows()
    for number, start in enumerate((0, 1000)):
        _row(rows, Kind.BACKWARD, start + 100, start + 200)
        _row(rows, Kind.MODE, start + 300, value=0)
        _row(rows, Kind.INPUT, start + 310, start + 320, value=4, ref=number)
        _row(rows, Kind.MODE, start + 800, value=1)
    _row(rows, Kind.BACKWARD, 2100, 2200)
    assert _found(_table(tmp_path, rows)) == [(300, 800), (310, 800), (1300, 1800), (1310, 1800)]


def test_a_loader_that_no_backward_follows_evaluates(tmp_path: Path) -> None:
    rows = Rows()
    for start in (0, 1000, 2000):
        _row(rows, Kind.INPUT, start, start + 10, value=4, ref=0)
        _row(rows, Kind.BACKWARD, start + 100, start + 200)
    _row(rows, Kind.LOADER, 1400, value=4, ref=1)
    _row(rows, Kind.INPUT, 1400, 1450, value=0, ref=1)
    _row(rows, Kind.INPUT, 1450, 1500, value=4, ref=1)
    _row(rows, Kind.INPUT, 1700, 1750, value=4, ref=1)
    assert _found(_table(tmp_path, rows)) == [(1400, 2000), (1450, 2000), (1700, 2000)]


def _step_without_backward(rows: Rows, step: int, start: int, end: int, *, steps_by: str) -> None:
    """With two batches, and an optimizer or nothing but the step's end to tell that they were trained on."""
    _row(rows, Kind.INPUT, start, start + 10, value=4, ref=0)
    _row(rows, Kind.INPUT, start + 50, start + 60, value=4, ref=0)
    if steps_by == "optimizer":
        _row(rows, Kind.OPTIMIZER, end - 50, end)
    _row(rows, Kind.STEP, start, end, ref=step)


@pytest.mark.parametrize("steps_by", ["optimizer", "mark"])
def test_without_any_backward_a_loader_between_steps_evaluates(tmp_path: Path, steps_by: str) -> None:
    rows = Rows()
    for step in range(3):
        _step_without_backward(rows, step, 1000 * step, 1000 * step + 300, steps_by=steps_by)
    for start in (1400, 1700):
        _row(rows, Kind.INPUT, start, start + 50, value=4, ref=1)
    assert _found(_table(tmp_path, rows)) == [(1400, 2000), (1700, 2000)]


def test_without_any_backward_a_mode_tells_of_an_evaluation_inside_a_step(tmp_path: Path) -> None:
    rows = Rows()
    for step in range(3):
        _step_without_backward(rows, step, 1000 * step, 1000 * step + 950, steps_by="mark")
    _row(rows, Kind.MODE, 1300, value=0)
    for start in (1400, 1700):
        _row(rows, Kind.INPUT, start, start + 50, value=4, ref=1)
    _row(rows, Kind.MODE, 1800, value=1)
    assert _found(_table(tmp_path, rows)) == [(1300, 1800), (1400, 1800), (1700, 1800)]


def test_without_any_backward_an_evaluation_after_the_last_step_counts(tmp_path: Path) -> None:
    rows = Rows()
    for step in range(3):
        _step_without_backward(rows, step, 1000 * step, 1000 * step + 300, steps_by="mark")
    _row(rows, Kind.INPUT, 2400, 2500, value=4, ref=1)
    assert trails_off(_table(tmp_path, rows), START_NS + 2300) == START_NS + 2500


@pytest.mark.parametrize("shows_by", ["row", "mode", "loader"])
def test_an_evaluation_after_the_last_step_counts(tmp_path: Path, shows_by: str) -> None:
    plan = Plan(trail_evaluation_ns=[500], evaluation_by=shows_by)
    built = build_run(tmp_path / "run", [[PLAIN] * 4], plan)
    phases = read_phases(built.folder)
    assert phases is not None
    assert phases.elapsed_ns == 3 * 330 + 500
    assert phases.phase_ns[0, :, PHASE["evaluation"]].tolist() == [0, 0, 500]
    assert phases.tail_ns.tolist() == [500]


def test_ranks_that_have_finished_wait_for_the_one_that_evaluates(tmp_path: Path) -> None:
    built = build_run(tmp_path / "run", [[PLAIN] * 4] * 3, Plan(trail_evaluation_ns=[500, 0, 0]))
    phases = read_phases(built.folder)
    assert phases is not None
    assert phases.phase_ns[:, -1, PHASE["evaluation"]].tolist() == [500, 0, 0]
    assert phases.phase_ns[:, -1, PHASE["wait"]].tolist() == [0, 500, 500]
    assert np.array_equal(phases.duration_ns.sum(axis=1), [3 * 330 + 500] * 3)


def test_an_unfinished_step_is_no_trail(tmp_path: Path) -> None:
    rows = Rows()
    for step in range(3):
        _row(rows, Kind.INPUT, 1000 * step, 1000 * step + 10, value=4, ref=0)
        _row(rows, Kind.BACKWARD, 1000 * step + 100, 1000 * step + 200)
        _row(rows, Kind.STEP, 1000 * step, 1000 * step + 1000, ref=step)
    _row(rows, Kind.INPUT, 3000, 3050, value=4, ref=0)
    assert trails_off(_table(tmp_path, rows), START_NS + 3000) == START_NS + 3000


@pytest.mark.parametrize(("ended", "end"), [(9000, 2600), (2500, 2500)])
def test_a_loop_of_its_own_evaluates_as_long_as_before(tmp_path: Path, ended: int, end: int) -> None:
    rows = Rows()
    for step in range(2):
        _row(rows, Kind.BACKWARD, 1000 * step + 700, 1000 * step + 900)
        _row(rows, Kind.STEP, 1000 * step, 1000 * step + 1000, ref=step)
    _row(rows, Kind.MODE, 1100, value=0)
    _row(rows, Kind.MODE, 1600, value=1)
    _row(rows, Kind.MODE, 2100, value=0)
    table = _table(tmp_path, rows, ended=True, clock_pairs=[[START_NS, 1], [START_NS + ended, 2]])
    assert trails_off(table, START_NS + 2000) == START_NS + end


def test_leaving_training_mode_for_good_is_no_evaluation(tmp_path: Path) -> None:
    rows = Rows()
    _row(rows, Kind.MODE, 0, value=1)
    _row(rows, Kind.BACKWARD, 700, 900)
    _row(rows, Kind.STEP, 0, 1000, ref=0)
    _row(rows, Kind.MODE, 1100, value=0)
    table = _table(tmp_path, rows, ended=True, clock_pairs=[[START_NS, 1], [START_NS + 4000, 2]])
    assert trails_off(table, START_NS + 1000) == START_NS + 1000
    assert _found(table, 1000) == [(1100, 1100)]


@pytest.mark.parametrize(("ended", "end"), [(9000, 1900 + 175), (2000, 2000), (None, 1900)])
def test_the_last_batch_is_worked_on_as_long_as_the_others(tmp_path: Path, ended: int | None, end: int) -> None:
    rows = Rows()
    _row(rows, Kind.STEP, 0, 1000, ref=0)
    for start in (1400, 1600, 1850):
        _row(rows, Kind.INPUT, start, start + 50, value=4, ref=1)
    pairs = [[START_NS, 1], [START_NS + (ended or 0), 2]]
    table = _table(tmp_path, rows, ended=ended is not None, clock_pairs=pairs)
    # 150 and 200 ns between batches, median 175
    assert trails_off(table, START_NS + 1000) - START_NS == end


def test_a_last_checkpoint_counts(tmp_path: Path) -> None:
    rows = Rows()
    _row(rows, Kind.STEP, 0, 1000, ref=0)
    _row(rows, Kind.CHECKPOINT, 1200, 1900)
    assert trails_off(_table(tmp_path, rows), START_NS + 1000) == START_NS + 1900
