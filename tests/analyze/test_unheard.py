"""Ranks that do not tell when they arrived: communication is then not measured, rather than nothing."""

from pathlib import Path

import pytest

from tests.tables import START_NS, Plan, Rows, StepPlan, build_run
from topout.analyze.measure import measure_run
from topout.analyze.steps import read_tables
from topout.analyze.unheard import without_arrivals
from topout.schema.event import Kind

MS = 1_000_000
KILLED = {"ended": False}


def late_in_backward(num_ranks: int = 2, *, forward: int = 5, waited_for: int = 100) -> list[list[StepPlan]]:
    """The last rank computes ten times as long as the others."""
    lengths = [10] * (num_ranks - 1) + [waited_for]
    return [[StepPlan(forward=forward * MS, backward=length * MS)] * 20 for length in lengths]


def test_without_arrivals_there_is_neither_a_verdict_nor_an_efficiency(tmp_path: Path) -> None:
    built = build_run(tmp_path / "run", late_in_backward(), Plan(num_buckets=0, facts=KILLED))
    measures, verdict = measure_run(built.folder)
    assert verdict is None
    assert measures.pop is None
    assert (measures.communication.wait_share, measures.communication.transfer_share) == (None, None)
    said = [sentence for sentence in measures.not_measured if "no arrivals of ranks 0, 1" in sentence]
    assert len(said) == 1
    assert "killed" in said[0]


def test_a_cause_larger_than_what_is_not_known_is_still_a_verdict(tmp_path: Path) -> None:
    starving = [[StepPlan(input=300 * MS, forward=5 * MS, backward=10 * MS)] * 20] * 2
    _, verdict = measure_run(build_run(tmp_path / "a", starving, Plan(num_buckets=0, facts=KILLED)).folder)
    assert verdict is not None
    assert verdict.name == "input-decode"
    computing = late_in_backward(forward=2000, waited_for=100)
    _, verdict = measure_run(build_run(tmp_path / "b", computing, Plan(num_buckets=0, facts=KILLED)).folder)
    assert verdict is not None
    assert verdict.name == "compute"


def test_one_rank_needs_no_arrivals(tmp_path: Path) -> None:
    built = build_run(tmp_path / "run", late_in_backward(1), Plan(num_buckets=0))
    measures, verdict = measure_run(built.folder)
    assert verdict is not None and measures.pop is not None
    assert measures.not_measured == ()


@pytest.mark.parametrize("is_there", [True, False])
def test_waiting_for_a_rank_without_a_recording_is_not_called_transfer(tmp_path: Path, is_there: bool) -> None:
    built = build_run(tmp_path / "run", late_in_backward())
    built.folder.events(1).unlink()
    if is_there:
        built.folder.events(1).write_bytes(b"")
    measures, verdict = measure_run(built.folder)
    assert verdict is None
    assert measures.pop is None
    assert measures.communication.transfer_share is None
    assert any("no recording of rank 1" in sentence for sentence in measures.not_measured)
    assert any(sentence.startswith("Waiting and transfer: not all ranks") for sentence in measures.not_measured)


def test_a_late_rank_is_named_though_another_left_no_recording(tmp_path: Path) -> None:
    built = build_run(tmp_path / "run", late_in_backward(4))
    built.folder.events(0).unlink()
    measures, verdict = measure_run(built.folder)
    assert verdict is not None
    assert (verdict.name, verdict.ranks, verdict.runner_up) == ("load-imbalance", (3,), None)
    assert any("no recording of rank 0" in sentence for sentence in measures.not_measured)


def test_a_pipeline_without_collectives_is_heard_by_its_schedule(tmp_path: Path) -> None:
    built = build_run(tmp_path / "run", late_in_backward(1), Plan(num_buckets=0))
    rows = Rows()
    rows.add(Kind.BACKWARD, START_NS, 10)
    rows.add(Kind.SCHEDULE, START_NS, 20)
    built.folder.events(1).write_bytes(b"".join(rows.blocks({"host": "n01"})))
    assert without_arrivals(read_tables(built.folder)) == [0]


def test_ranks_without_a_process_group_are_not_said_to_have_lost_their_arrivals(tmp_path: Path) -> None:
    built = build_run(tmp_path / "run", late_in_backward(), Plan(num_buckets=0))
    measures, verdict = measure_run(built.folder)
    assert (verdict, measures.pop, measures.stragglers) == (None, None, ())
    (said,) = measures.not_measured
    assert "made no process group" in said
    joined = build_run(tmp_path / "joined", late_in_backward(), Plan(num_buckets=0, facts={"backend": "gloo"}))
    assert any("knew none" in sentence for sentence in measure_run(joined.folder)[0].not_measured)


def test_the_only_rank_that_trains_is_judged_though_it_arrives_nowhere(tmp_path: Path) -> None:
    built = build_run(tmp_path / "run", late_in_backward(1), Plan(num_buckets=0))
    rows = Rows()
    rows.add(Kind.INPUT, START_NS, 10)
    built.folder.events(1).write_bytes(b"".join(rows.blocks({"host": "n01", "ended": True})))
    measures, verdict = measure_run(built.folder)
    assert verdict is not None and verdict.name == "compute"
    assert not any("arrivals" in sentence for sentence in measures.not_measured)
