"""Tensor-parallel peers from literals: whose waiting it is, and what is not theirs."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tables import START_NS, Rows, StepPlan, build_run
from topout.analyze.measure import measure_run
from topout.analyze.peers import sample_peers
from topout.analyze.steps import read_tables
from topout.schema.event import Kind
from topout.schema.measures import Measures, Verdict
from topout.schema.run_folder import RUN_VERSION, RunFolder

MS = 1_000_000
NUM_STEPS = 8
TP = {"5": {"name": "tp", "ranks": [0, 1]}}
DP = {"5": {"name": "dp", "ranks": [0, 1]}}


def run_of(
    path: Path,
    groups: dict[str, Any] | None,
    *,
    group: str = "5",
    at_ms: int = 10,
    until_ms: int = 45,
    late_ms: int = 30,
) -> tuple[Measures, Verdict]:
    """Steps of 100 ms: both wait for a collective until ms 45; rank 1 comes to it 30 ms later than rank 0.

    A backward from ms 50 to 90 arrives at a collective of the same group at ms 60. The optimizer follows it.
    """
    path.mkdir()
    # the flight recorder does not name the default group
    recorded = "all_reduce" if group == "0" else f"all_reduce@{group}"
    for rank in range(2):
        rows = Rows()
        for step in range(NUM_STEPS):
            start = START_NS + step * 100 * MS
            come = start + (at_ms + late_ms * rank) * MS
            rows.add(Kind.PEERS, come, start + until_ms * MS - come, name=f"all_reduce@{group}", ref=step)
            rows.add(Kind.ARRIVAL, come, name=recorded, value=4096, ref=2 * step)
            rows.add(Kind.BACKWARD, start + 50 * MS, 40 * MS, ref=0)
            rows.add(Kind.ARRIVAL, start + 60 * MS, name=recorded, value=4096, ref=2 * step + 1)
            rows.add(Kind.OPTIMIZER, start + 90 * MS, 10 * MS, ref=0)
            rows.add(Kind.STEP, start, 100 * MS, ref=step)
        facts = {"rank": rank, "host": "n01", "mesh_groups": groups, "ended": True}
        RunFolder(path).events(rank).write_bytes(b"".join(rows.blocks(facts)))
    world = {"hosts": [{"name": "n01"}], "ranks": [{"rank": r, "host": "n01"} for r in range(2)]}
    RunFolder(path).run_json.write_text(json.dumps({"version": RUN_VERSION, "status": "finished", **world}))
    measures, verdict = measure_run(RunFolder(path))
    assert verdict is not None
    return measures, verdict


def test_waiting_for_a_late_peer_is_told_from_transfer(tmp_path):
    measures, verdict = run_of(tmp_path / "run", TP)
    assert [rank.shares["tensor"] for rank in measures.ranks] == [pytest.approx(0.35), pytest.approx(0.05)]
    peers = measures.tensor_parallel
    assert peers is not None
    assert peers.share == pytest.approx(0.2)
    assert peers.wait_share == pytest.approx(0.15)
    assert peers.transfer_share == pytest.approx(0.05)
    assert (peers.num_collectives_per_step, peers.num_ranks, peers.spans_hosts) == (1.0, 2, False)
    assert (verdict.name, verdict.phase, verdict.ranks) == ("tensor-parallel", "tensor", (1,))


def test_a_backward_does_not_end_with_a_collective_that_is_waited_for_by_itself(tmp_path):
    measures, _ = run_of(tmp_path / "run", TP)
    for rank in measures.ranks:
        assert rank.shares["backward"] == pytest.approx(0.4)
        assert rank.shares["wait"] == rank.shares["transfer"] == 0.0


def test_another_dimension_of_the_mesh_is_waited_for_as_ever(tmp_path):
    measures, verdict = run_of(tmp_path / "run", DP)
    assert [rank.shares["wait"] for rank in measures.ranks] == [pytest.approx(0.30), pytest.approx(0.0)]
    assert [rank.shares["transfer"] for rank in measures.ranks] == [pytest.approx(0.05), pytest.approx(0.05)]
    assert measures.shares["tensor"] == 0.0
    assert measures.tensor_parallel is None
    assert verdict.name == "load-imbalance"


def test_a_group_nobody_named_is_theirs_inside_forward_and_not_after_backward(tmp_path):
    inside, _ = run_of(tmp_path / "inside", None)
    assert inside.ranks[0].shares["tensor"] == pytest.approx(0.35)
    assert inside.tensor_parallel is not None
    assert inside.tensor_parallel.num_ranks is None
    # after backward, as clipping of gradients does
    after, _ = run_of(tmp_path / "after", None, at_ms=91, until_ms=99, late_ms=4)
    assert after.shares["tensor"] == 0.0
    assert after.ranks[0].shares["wait"] == pytest.approx(0.04)


def test_the_default_group_is_known_by_both_of_its_names(tmp_path):
    measures, _ = run_of(tmp_path / "run", {"0": {"name": "tp", "ranks": [0, 1]}}, group="0")
    assert measures.ranks[0].shares["tensor"] == pytest.approx(0.35)
    assert measures.shares["transfer"] == 0.0


def meshed(path: Path, groups: list[dict[str, list[int]]], *, loads: list[int]) -> RunFolder:
    """`groups[r]` are the dimensions of rank r with their ranks; `loads[r]` the samples that it asks for in a step."""
    steps = [[StepPlan(forward=40 * MS, backward=60 * MS, samples=samples)] * NUM_STEPS for samples in loads]
    folder = build_run(path, steps).folder
    for rank, own in enumerate(groups):
        told = {f"{name}{ranks[0]}": {"name": name, "ranks": ranks} for name, ranks in own.items()}
        facts = b"".join(Rows().blocks({"mesh_groups": told})[1:])
        folder.events(rank).write_bytes(folder.events(rank).read_bytes() + facts)
    return folder


def test_tensor_parallel_peers_share_their_samples(tmp_path):
    groups = [{"dp": [r % 4, r % 4 + 4], "tp": [0, 1, 2, 3] if r < 4 else [4, 5, 6, 7]} for r in range(8)]
    folder = meshed(tmp_path / "run", groups, loads=[16] * 8)
    assert sample_peers(read_tables(folder)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    step = measure_run(folder)[0].step
    assert step is not None
    assert step.samples_per_s == pytest.approx(2 * 16 / 0.1)


def test_stages_of_a_pipeline_and_their_tensor_parallel_peers_count_once(tmp_path):
    groups = [{"pp": [r % 2, r % 2 + 2], "tp": [r // 2 * 2, r // 2 * 2 + 1]} for r in range(4)]
    folder = meshed(tmp_path / "run", groups, loads=[16, 16, 0, 0])
    assert sample_peers(read_tables(folder)) == [[0, 1, 2, 3]]
    step = measure_run(folder)[0].step
    assert step is not None
    assert step.samples_per_s == pytest.approx(16 / 0.1)


def test_replicas_have_samples_of_their_own(tmp_path):
    folder = meshed(tmp_path / "run", [{"dp": [0, 1]}] * 2, loads=[16, 16])
    assert sample_peers(read_tables(folder)) == [[0], [1]]
