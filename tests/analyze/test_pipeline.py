"""Pipelines from literals: what a stage computes, what is bubble, and what the schedule explains of it."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.tables import START_NS, Rows
from topout.analyze.measure import measure_run
from topout.recommend.engine import find
from topout.schema.event import NOT_GIVEN, Kind
from topout.schema.measures import Measures, Verdict
from topout.schema.run_folder import RUN_VERSION, RunFolder

MS = 1_000_000
NUM_STEPS = 8

Piece = tuple[str, int]
"""what, milliseconds"""


def run_of(
    path: Path,
    ranks: list[list[Piece]],
    *,
    microbatches: int = 2,
    is_waiting_seen: bool = True,
    device: Sequence[Piece] = (),
    num_replicas: int = 1,
) -> tuple[Measures, Verdict]:
    """Every step of rank r is made of these pieces, end to end; all ranks' pieces have the same length together.

    `device` is what the device of every rank did in a step. Replicas follow each other, each with all stages.
    """
    path.mkdir()
    num_stages, ranks = len(ranks), ranks * num_replicas
    for rank, pieces in enumerate(ranks):
        rows, at = Rows(), START_NS
        for step in range(NUM_STEPS):
            for name, ms in device:
                rows.add(Kind.DEVICE, at, ms * MS, name=name, ref=step)
            at = _step(rows, rank % num_stages, pieces, at, step, (microbatches, num_stages, is_waiting_seen))
        facts = {"rank": rank, "host": "n01", "clock_pairs": [[START_NS, START_NS]], "ended": True}
        RunFolder(path).events(rank).write_bytes(b"".join(rows.blocks(facts)))
    world = {"hosts": [{"name": "n01"}], "ranks": [{"rank": r, "host": "n01"} for r in range(len(ranks))]}
    RunFolder(path).run_json.write_text(json.dumps({"version": RUN_VERSION, "status": "finished", **world}))
    measures, verdict = measure_run(RunFolder(path))
    assert verdict is not None
    return measures, verdict


def _step(rows: Rows, rank: int, pieces: list[Piece], at: int, step: int, plan: tuple[int, int, bool]) -> int:
    start, (microbatches, num_stages, is_waiting_seen) = at, plan
    own = [what for what, _ in pieces if what in ("forward", "backward", "weight", "bubble", "loss")]
    first, last = START_NS << 1, 0
    for what, ms in pieces:
        end = at + ms * MS
        if what in own:
            first, last = min(first, at), end
        if what in ("forward", "backward", "weight"):
            rows.add(Kind.CHUNK, at, end - at, name=what, value=0, ref=rank)
        if what in ("backward", "weight"):
            rows.add(Kind.BACKWARD, at, end - at, ref=0)
        if what == "bubble" and is_waiting_seen:
            rows.add(Kind.COLLECTIVE, at, 0, name="irecv.launched", value=64, ref=NOT_GIVEN)
            rows.add(Kind.NEIGHBOUR, at, end - at)
        if what == "input":
            rows.add(Kind.INPUT, at, end - at, value=8, ref=0)
        if what == "optimizer":
            rows.add(Kind.OPTIMIZER, at, end - at, ref=0)
        at = end
    rows.add(Kind.SCHEDULE, first, last - first, name="ScheduleGPipe", value=microbatches, ref=num_stages)
    rows.add(Kind.STEP, start, at - start, value=NOT_GIVEN, ref=step)
    return at


GPIPE = [
    [("forward", 10), ("forward", 10), ("bubble", 30), ("backward", 20), ("backward", 20), ("optimizer", 10)],
    [("bubble", 30), ("forward", 10), ("loss", 1), ("forward", 9), ("backward", 20), ("backward", 20),
     ("optimizer", 10)],
]  # fmt: skip


def test_a_stage_s_time_is_chunks_and_bubble_and_the_loss_counts_as_forward(tmp_path):
    measures, verdict = run_of(tmp_path / "run", GPIPE)
    for rank in measures.ranks:
        assert rank.shares["forward"] == pytest.approx(0.2)
        assert rank.shares["backward"] == pytest.approx(0.4)
        assert rank.shares["bubble"] == pytest.approx(0.3)
        assert rank.shares["optimizer"] == pytest.approx(0.1)
    assert verdict.name == "pipeline-bubble"
    assert verdict.share == pytest.approx(0.3)
    found = measures.pipeline
    assert found is not None
    assert (found.num_stages, found.num_microbatches, found.stages_per_rank) == (2, 2, 1)
    assert found.schedule_bubble_share == pytest.approx(30 / 90)
    assert found.formula_share == pytest.approx(1 / 3)
    assert found.imbalance == pytest.approx(1.0)
    assert (found.better_microbatches, found.better_share) == (8, pytest.approx(1 / 9))


def test_where_waiting_cannot_be_seen_it_is_what_no_chunk_explains(tmp_path):
    measures, _ = run_of(tmp_path / "run", GPIPE, is_waiting_seen=False)
    assert measures.ranks[0].shares["bubble"] == pytest.approx(0.3)
    assert measures.ranks[1].shares["bubble"] == pytest.approx(0.31)


def test_efficiencies_are_products_and_the_bubble_is_no_useful_time(tmp_path):
    measures, _ = run_of(tmp_path / "run", GPIPE)
    pop = measures.pop
    assert pop is not None
    assert pop.parallel_efficiency == pytest.approx(0.7)
    assert pop.load_balance * pop.communication_efficiency == pytest.approx(pop.parallel_efficiency)
    assert [bar.share for bar in measures.waterfall if bar.name == "bubble"] == [pytest.approx(0.3)]


def test_on_devices_a_bubble_is_seen_and_what_replicas_exchange_is_not(tmp_path):
    device = [("forward", 20), ("backward", 40), ("bubble", 30), ("optimizer", 10)]
    alone, _ = run_of(tmp_path / "alone", GPIPE, device=device)
    assert alone.pop is not None
    assert alone.pop.parallel_efficiency == pytest.approx(0.7)
    replicas, _ = run_of(tmp_path / "replicas", GPIPE, device=device, num_replicas=2)
    assert replicas.shares["bubble"] == pytest.approx(0.3)
    assert replicas.pop is None


def test_too_few_micro_batches_are_found_with_the_gain_of_the_formula(tmp_path):
    measures, _ = run_of(tmp_path / "run", GPIPE)
    (finding,) = [finding for finding in find(measures) if finding.code == "PP01"]
    assert "8 micro-batches instead of 2 would make it 11 %" in finding.advise
    # 3/2 -> 9/8 of the work's own time, in nine tenths of the step
    assert finding.gain_at_most == pytest.approx(0.9 * (1 - (9 / 8) / (3 / 2)))


def test_a_slower_stage_is_named_and_no_rank_is_blamed_for_it(tmp_path):
    uneven = [
        [("forward", 10), ("forward", 10), ("bubble", 60), ("backward", 20), ("backward", 20)],
        [("bubble", 20), ("forward", 20), ("forward", 20), ("backward", 30), ("backward", 30)],
    ]
    measures, verdict = run_of(tmp_path / "run", uneven)
    assert measures.pipeline is not None
    assert measures.pipeline.imbalance == pytest.approx(100 / 80)
    assert (measures.pipeline.slowest_stage, measures.pipeline.slowest_rank) == (1, 1)
    assert "Stage 1 on rank 1 computes 1.25 times the mean" in " ".join(verdict.evidence)
    codes = [finding.code for finding in find(measures)]
    assert "PP02" in codes
    assert "LB01" not in codes


def test_a_first_stage_that_waits_for_its_batch_is_an_input_problem(tmp_path):
    starved = [
        [("input", 60), ("forward", 20), ("backward", 20)],
        [("bubble", 60), ("forward", 20), ("backward", 20)],
    ]
    measures, verdict = run_of(tmp_path / "run", starved, microbatches=16)
    assert verdict.name == "input-decode"
    assert verdict.share == pytest.approx(0.6)
    assert measures.shares["bubble"] == pytest.approx(0.3)


def test_gradients_of_weights_alone_are_backward_and_their_batches_train(tmp_path):
    split = [
        [("input", 5), ("forward", 10), ("weight", 10), ("bubble", 15)],
        [("bubble", 15), ("forward", 10), ("weight", 10), ("optimizer", 5)],
    ]
    measures, _ = run_of(tmp_path / "run", split)
    assert measures.ranks[0].shares["backward"] == pytest.approx(0.25)
    assert measures.ranks[0].shares["evaluation"] == 0.0


def test_without_a_schedule_there_is_no_pipeline(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    rows = Rows()
    for step in range(NUM_STEPS):
        rows.add(Kind.BACKWARD, START_NS + step * 100 * MS, 90 * MS, ref=0)
        rows.add(Kind.STEP, START_NS + step * 100 * MS, 100 * MS, ref=step)
    RunFolder(path).events(0).write_bytes(b"".join(rows.blocks({"rank": 0, "host": "n01"})))
    RunFolder(path).run_json.write_text(json.dumps({"version": RUN_VERSION, "status": "finished"}))
    measures, _ = measure_run(RunFolder(path))
    assert measures.pipeline is None
    assert measures.tensor_parallel is None
    assert measures.shares["bubble"] == 0.0
