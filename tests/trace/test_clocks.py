"""Clocks of hosts: aligned by the time of day, corrected by the ends of collectives."""

from pathlib import Path

import numpy as np

from tests.tables import START_NS, Plan, StepPlan, build_run
from topout.schema.event import Kind
from topout.trace.clocks import align
from topout.trace.readers.topout import read_run

MS = 1_000_000


def _steps(num_steps: int) -> list[StepPlan]:
    return [StepPlan(forward=3 * MS, backward=(5 + k % 3) * MS, optimizer=1 * MS) for k in range(num_steps)]


def test_one_host_is_left_alone(tmp_path: Path) -> None:
    built = build_run(tmp_path / "run", [_steps(4), _steps(4)])
    tables = read_run(built.folder)
    aligned = align(tables)
    assert aligned.skew_ns == 0.0
    assert aligned.tables[1].start_ns is tables[1].start_ns


def test_hosts_with_clocks_of_their_own_come_onto_one_axis(tmp_path: Path) -> None:
    built = build_run(tmp_path / "run", [_steps(6)] * 3, Plan(transfer_ns=MS, hosts=["n01", "n02", "n02"]))
    aligned = align(read_run(built.folder))
    ends = [table.end_ns[table.rows(Kind.BACKWARD)] for table in aligned.tables]
    assert ends[0].tolist() == ends[1].tolist() == ends[2].tolist()
    assert aligned.skew_ns == 0.0


def test_a_wrong_time_of_day_is_corrected_by_collective_ends(tmp_path: Path) -> None:
    plan = Plan(transfer_ns=MS, hosts=["n01", "n02"], clock_error_ns=[0, 250 * MS])
    built = build_run(tmp_path / "run", [_steps(6)] * 2, plan)
    first, second = align(read_run(built.folder)).tables
    assert np.array_equal(first.end_ns[first.rows(Kind.BACKWARD)], second.end_ns[second.rows(Kind.BACKWARD)])


def test_without_common_collectives_the_skew_is_not_known(tmp_path: Path) -> None:
    built = build_run(tmp_path / "run", [_steps(6)] * 2, Plan(num_buckets=0, hosts=["n01", "n02"]))
    assert align(read_run(built.folder)).skew_ns is None


def test_counters_move_with_their_rank(tmp_path: Path) -> None:
    plan = Plan(hosts=["n01", "n02"], counters={"read_bytes": [(0, 1), (5 * MS, 2)]})
    built = build_run(tmp_path / "run", [_steps(6)] * 2, plan)
    first, second = align(read_run(built.folder)).tables
    assert first.counters["read_bytes"].times_ns.tolist() == second.counters["read_bytes"].times_ns.tolist()
    assert first.counters["read_bytes"].times_ns[0] == START_NS
