"""Run folders made from literals: what each rank did in each step, written in the real format.

The builder plays the steps like a data-parallel job: every rank arrives at the all-reduce when its own backward
compute ends, and the all-reduce ends for all of them `transfer_ns` after the last arrival. `BuiltRun.phase_ns` is the
truth that an analysis must find again.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from topout.schema.block import BlockType, seal
from topout.schema.event import NOT_GIVEN, Flag, Kind, pack_code
from topout.schema.measures import PHASES
from topout.schema.run_folder import RUN_VERSION, RunFolder

START_NS = 1_000_000_000_000
TRAINING_LOADER = 0


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """One rank's step, in nanoseconds and in this order; `backward` is compute, up to the last bucket's arrival."""

    other: int = 0
    evaluation: int = 0
    checkpoint: int = 0
    input: int = 0
    copy: int = 0
    forward: int = 0
    backward: int = 0
    optimizer: int = 0
    samples: int = 1
    """Of a batch."""
    batches: int = 1
    """How many add up to the step, each with an equal part of the nanoseconds; the last alone sends."""
    backward_cpu: int = NOT_GIVEN


class Rows:
    """Rows of one rank, with their names, in the order they were recorded."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int, int]] = []
        self.names: list[str] = [""]

    def add(
        self,
        kind: Kind,
        start_ns: int,
        duration_ns: int = 0,
        *,
        name: str = "",
        value: int = NOT_GIVEN,
        ref: int = NOT_GIVEN,
        flags: Flag = Flag.NONE,
    ) -> None:
        if name not in self.names:
            self.names.append(name)
        code = pack_code(kind, self.names.index(name), flags)
        self.rows.append((code, start_ns, duration_ns, value, ref))

    def blocks(self, facts: dict[str, Any], rows_per_block: int = 200) -> list[bytes]:
        made = [seal(BlockType.NAMES, json.dumps([0, *self.names]).encode())]
        for first in range(0, len(self.rows), rows_per_block):
            columns = np.array(self.rows[first : first + rows_per_block], dtype="<i8").T
            made.append(seal(BlockType.ROWS, np.ascontiguousarray(columns).tobytes()))
        return [*made, seal(BlockType.FACTS, json.dumps(facts).encode())]


@dataclass(frozen=True, kw_only=True)
class BuiltRun:
    folder: RunFolder
    phase_ns: np.ndarray
    """[ranks, steps, PHASES]: what was planned, and the waiting that follows from it."""
    ends_ns: np.ndarray
    """[ranks, steps]: where each step ended, on the first host's clock."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What holds for a whole run; the defaults make a run on one host."""

    transfer_ns: int = 0
    num_buckets: int = 2
    bucket_bytes: int = 1 << 20
    hosts: Sequence[str] | None = None
    clock_error_ns: Sequence[int] | None = None
    """What each rank's realtime clock shows too much."""
    trail_evaluation_ns: Sequence[int] | None = None
    """An evaluation after the last optimizer step, a rank each; 0 = none."""
    evaluation_by: str = "row"
    """How an evaluation shows: `row`, `mode` (model.eval and model.train) or `loader` (batches without a backward)."""
    facts: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    """name -> (ns after the start, value), the same for every rank"""
    run: dict[str, Any] = field(default_factory=dict)


def build_run(path: Path, ranks: list[list[StepPlan]], plan: Plan | None = None) -> BuiltRun:
    """Writes a run folder; `ranks[r][k]` is step k of rank r."""
    plan = plan or Plan()
    folder = RunFolder(path)
    path.mkdir(parents=True, exist_ok=True)
    hosts = list(plan.hosts or ["n01"] * len(ranks))
    tables = [Rows() for _ in ranks]
    now = [START_NS] * len(ranks)
    phase_ns = np.zeros((len(ranks), len(ranks[0]), len(PHASES)), dtype=np.int64)
    ends_ns = np.zeros(phase_ns.shape[:2], dtype=np.int64)
    for step in range(len(ranks[0])):
        arrivals = [_until_arrival(tables[r], plan, ranks[r][step], now[r], step) for r in range(len(ranks))]
        done = max(arrival for _, arrival in arrivals) + plan.transfer_ns if len(ranks) > 1 else arrivals[0][1]
        for r, rows in enumerate(tables):
            today, (backward_start, arrival) = ranks[r][step], arrivals[r]
            rows.add(Kind.BACKWARD, backward_start, done - backward_start, value=today.backward_cpu, ref=0)
            rows.add(Kind.OPTIMIZER, done, today.optimizer, ref=0)
            rows.add(Kind.STEP, now[r], done + today.optimizer - now[r], ref=step)
            now[r] = ends_ns[r, step] = done + today.optimizer
            phase_ns[r, step] = _truth(today, done - arrival, plan.transfer_ns if len(ranks) > 1 else 0)
    for r, length in enumerate(plan.trail_evaluation_ns or []):
        if length:
            _evaluate(tables[r], plan.evaluation_by, now[r], length)
    for r, rows in enumerate(tables):
        _write(folder, r, rows, hosts[r], plan)
    world = {
        "hosts": [{"name": name} for name in dict.fromkeys(hosts)],
        "ranks": [{"rank": r, "host": host} for r, host in enumerate(hosts)],
    }
    folder.run_json.write_text(json.dumps({"version": RUN_VERSION, "status": "finished", **world, **plan.run}))
    return BuiltRun(folder=folder, phase_ns=phase_ns, ends_ns=ends_ns)


def _until_arrival(rows: Rows, plan: Plan, today: StepPlan, start_ns: int, step: int) -> tuple[int, int]:
    at = start_ns + today.other
    if today.evaluation:
        _evaluate(rows, plan.evaluation_by, at, today.evaluation)
    at += today.evaluation
    if today.checkpoint:
        rows.add(Kind.CHECKPOINT, at, today.checkpoint)
    at += today.checkpoint
    backward = today.backward // today.batches
    for batch in range(today.batches):
        rows.add(Kind.INPUT, at, today.input // today.batches, value=today.samples, ref=TRAINING_LOADER)
        at += today.input // today.batches
        if today.copy:
            rows.add(Kind.COPY, at, today.copy // today.batches, value=1024)
        at += (today.copy + today.forward) // today.batches
        if batch < today.batches - 1:
            rows.add(Kind.BACKWARD, at, backward, value=today.backward_cpu, ref=0)
            at += backward
    arrival = at + backward
    for bucket in range(plan.num_buckets):
        sequence = step * plan.num_buckets + bucket
        early = (plan.num_buckets - 1 - bucket) * (backward // (2 * plan.num_buckets))
        rows.add(Kind.ARRIVAL, arrival - early, name="all_reduce", value=plan.bucket_bytes, ref=sequence)
    return at, arrival


def _evaluate(rows: Rows, shows_by: str, start_ns: int, length_ns: int) -> None:
    if shows_by == "row":
        rows.add(Kind.EVALUATION, start_ns, length_ns)
    elif shows_by == "mode":
        rows.add(Kind.MODE, start_ns, value=0)
        rows.add(Kind.MODE, start_ns + length_ns, value=1)
    else:
        iterator = 1 + len(rows.rows)
        rows.add(Kind.LOADER, start_ns, value=8, ref=iterator)
        rows.add(Kind.INPUT, start_ns, length_ns // 4, value=8, ref=iterator)
        rows.add(Kind.INPUT, start_ns + length_ns // 2, length_ns - length_ns // 2, value=8, ref=iterator)


def _truth(today: StepPlan, exposed_ns: int, transfer_ns: int) -> list[int]:
    known = {"wait": exposed_ns - transfer_ns, "transfer": transfer_ns}
    return [known.get(phase, getattr(today, phase, 0)) for phase in PHASES]


def _write(folder: RunFolder, rank: int, rows: Rows, host: str, plan: Plan) -> None:
    error_ns = (plan.clock_error_ns or [0] * (rank + 1))[rank]
    boot_ns = 17_000_000_000 * sorted(set(plan.hosts or [host])).index(host)
    rows.rows = [(code, start - boot_ns, *rest) for code, start, *rest in rows.rows]  # each host's own clock
    end_ns = max((start + duration for _, start, duration, *_ in rows.rows), default=START_NS - boot_ns)
    pairs = [[at, at + boot_ns + error_ns] for at in (START_NS - boot_ns, end_ns)]
    facts = {"rank": rank, "host": host, "clock_pairs": pairs, "ended": True, **plan.facts}
    folder.events(rank).write_bytes(b"".join(rows.blocks(facts)))
    counters = Rows()
    for name, samples in plan.counters.items():
        for after_ns, value in samples:
            counters.add(Kind.COUNTER, START_NS - boot_ns + after_ns, name=name, value=value)
    folder.counters(rank).write_bytes(b"".join(counters.blocks({})))
