"""A whole run measured: shares add up, parts fail alone, and what is missing is said."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tables import START_NS, Plan, Rows, StepPlan, build_run
from topout.analyze.environment import describe_environment
from topout.analyze.measure import measure_run
from topout.analyze.memory import measure_memory
from topout.analyze.series import load_series
from topout.analyze.steps import read_tables
from topout.schema.errors import TopoutError
from topout.schema.event import Flag, Kind
from topout.schema.measures import PHASES
from topout.schema.run_folder import RunFolder

MS = 1_000_000
S = 1_000_000_000
MIXED = [
    [
        StepPlan(
            other=2 * MS, input=(5 + r) * MS, copy=MS, forward=20 * MS, backward=(40 + 5 * r) * MS,
            optimizer=(3 + r) * MS,
            evaluation=30 * MS * (k % 4 == 1), checkpoint=11 * MS * (k % 4 == 2 and r == 0), samples=16,
        )
        for k in range(12)
    ]
    for r in range(3)
]  # fmt: skip


def test_shares_add_up_and_the_waterfall_ends_at_what_was_computed(tmp_path: Path) -> None:
    built = build_run(tmp_path / "run", MIXED, Plan(transfer_ns=7 * MS))
    measures, _ = measure_run(built.folder)
    assert sum(measures.shares.values()) == pytest.approx(1, abs=1e-9)
    for rank in measures.ranks:
        assert tuple(rank.shares) == PHASES
        assert sum(rank.shares.values()) == pytest.approx(1, abs=1e-9)
    assert measures.pop is not None
    product = measures.pop.load_balance * measures.pop.communication_efficiency
    assert product == pytest.approx(measures.pop.parallel_efficiency, abs=1e-9)
    assert [bar.name for bar in measures.waterfall] == [
        "input", "copy", "evaluation", "checkpoint", "bubble", "tensor", "wait", "transfer", "other"
    ]  # fmt: skip
    computed = sum(measures.shares[name] for name in ("forward", "backward", "optimizer"))
    assert measures.waterfall[-1].remaining_share == pytest.approx(computed)
    assert measures.not_measured == ()


@pytest.mark.parametrize("profiled", [None, [15, 17]], ids=["to the end", "until a profile"])
def test_a_rank_that_begins_its_steps_early_is_counted_with_their_batches(
    tmp_path: Path, profiled: list[int] | None
) -> None:
    plans = [
        [StepPlan(input=MS, forward=20 * MS, backward=20 * MS, optimizer=(2 + 3 * (r == 3)) * MS, samples=8)] * 20
        for r in range(4)
    ]
    plan = Plan(transfer_ns=5 * MS, facts={"profiled_steps": profiled})
    measures, _ = measure_run(build_run(tmp_path / "run", plans, plan).folder)
    assert measures.window is not None and measures.step is not None
    samples = 4 * 8 * measures.window.num_steps
    assert measures.step.samples_per_s == pytest.approx(samples / (measures.window.elapsed_ns / 1e9))
    assert measures.step.samples_per_step == 8


def test_the_window_and_step_time(tmp_path: Path) -> None:
    steps = [StepPlan(forward=(500 if k == 0 else 50) * MS, backward=50 * MS, samples=4) for k in range(9)]
    measures, _ = measure_run(build_run(tmp_path / "run", [steps]).folder)
    assert measures.window is not None and measures.step is not None
    window = measures.window
    assert (window.first_step, window.last_step, window.num_steps, window.num_warmup_steps) == (1, 8, 8, 1)
    assert window.elapsed_ns == 800 * MS
    assert (measures.step.mean_ns, measures.step.p05_ns, measures.step.p95_ns) == (100 * MS, 100 * MS, 100 * MS)
    assert measures.step.samples_per_s == pytest.approx(40)


def test_arithmetic_is_told_with_the_origin_of_its_peak(tmp_path: Path) -> None:
    step = StepPlan(forward=50 * MS, backward=50 * MS)
    gpu = {"flops_per_step": 10**13, "flop_dtype": "bfloat16", "device_name": "NVIDIA H100 80GB HBM3"}
    compute = measure_run(build_run(tmp_path / "gpu", [[step] * 5] * 2, Plan(facts=gpu)).folder)[0].compute
    assert (compute.flops_per_step, compute.flops_per_s) == (2e13, pytest.approx(2e14))
    assert (compute.peak_flops_per_s, compute.peak_origin) == (2 * 989e12, "table")
    assert compute.model_flops_utilisation == pytest.approx(2e14 / 1978e12)
    cpu = {"flops_per_step": 10**9, "num_threads": 4}
    compute = measure_run(build_run(tmp_path / "cpu", [[step] * 5], Plan(facts=cpu)).folder)[0].compute
    assert (compute.peak_flops_per_s, compute.peak_origin) == (4 * 192e9, "assumed")
    assert compute.model_flops_utilisation == pytest.approx(1e10 / (4 * 192e9))
    tried = {"flops_per_step": 10**9, "num_threads": 4, "measured_peak_flops_per_s": 5e10}
    compute = measure_run(build_run(tmp_path / "tried", [[step] * 5], Plan(facts=tried)).folder)[0].compute
    assert (compute.peak_flops_per_s, compute.peak_origin) == (5e10, "measured")
    assert compute.model_flops_utilisation == pytest.approx(0.2)
    fast = {"flops_per_step": 10**13, "num_threads": 4}
    compute = measure_run(build_run(tmp_path / "fast", [[step] * 5], Plan(facts=fast)).folder)[0].compute
    assert (compute.flops_per_s, compute.model_flops_utilisation) == (pytest.approx(1e14), None)
    compute = measure_run(build_run(tmp_path / "none", [[step] * 5]).folder)[0].compute
    assert (compute.flops_per_s, compute.model_flops_utilisation, compute.peak_flops_per_s) == (None, None, None)


def test_the_environment_comes_from_the_launcher_and_the_ranks(tmp_path: Path) -> None:
    run = {
        "hosts": [{"name": "n01", "num_cores": 8, "memory_bytes": 1000}],
        "ranks": [{"rank": r, "host": "n01", "cores": [4 * r, 4 * r + 1], "num_threads": 2} for r in range(2)],
    }
    facts = {"torch_version": "2.13.0", "uses_autocast": False, "has_convolutions": True,
             "processor": "aarch64", "backward_uses_onednn": True}  # fmt: skip
    environment = measure_run(build_run(tmp_path / "run", MIXED[:2], Plan(run=run, facts=facts)).folder)[0].environment
    assert (environment.num_ranks, environment.num_hosts, environment.num_cores) == (2, 1, 8)
    assert (environment.cores_per_rank, environment.threads_per_rank, environment.is_bound) == (2, 2, True)
    assert (environment.uses_autocast, environment.has_convolutions, environment.uses_tf32) == (False, True, None)
    assert (environment.processor, environment.backward_uses_onednn) == ("aarch64", True)


def test_of_many_ranks_each_is_looked_at_a_few_times_only(tmp_path: Path) -> None:
    class Told(str):
        num_compared = 0

        def __eq__(self, other: object) -> bool:
            Told.num_compared += 1
            return super().__eq__(other)

        __hash__ = str.__hash__

    class Entry(dict[str, Any]):
        num_read = 0

        def get(self, key: str, default: Any = None) -> Any:
            Entry.num_read += 1
            return super().get(key, default)

    (table,) = read_tables(build_run(tmp_path / "run", MIXED[:1]).folder)
    tables = [replace(table, rank=rank, host=Told(f"n{rank // 4}")) for rank in range(100)]
    run = {"ranks": [Entry(rank=rank, num_threads=rank) for rank in range(100)]}
    assert describe_environment(tables, run).threads_per_rank == 99
    assert Entry.num_read < 1000
    run["hosts"] = [{"name": f"n{host}", "memory_bytes": 4000} for host in range(25)]
    Told.num_compared = 0
    measure_memory(tables, run, None)
    assert Told.num_compared < 1000


def test_a_rank_that_cannot_be_read_is_on_no_host_of_its_own(tmp_path: Path) -> None:
    built = build_run(tmp_path / "run", MIXED)
    built.folder.events(2).write_bytes(b"")
    environment = measure_run(built.folder)[0].environment
    assert (environment.num_ranks, environment.num_hosts) == (3, 1)


@pytest.mark.parametrize(("num_steps", "first_step", "is_said"), [(20, 8, False), (13, 8, False), (12, 1, True)])
def test_profiled_steps_are_left_out_when_others_remain(
    tmp_path: Path, num_steps: int, first_step: int, is_said: bool
) -> None:
    steps = [StepPlan(forward=50 * MS, backward=50 * MS)] * num_steps
    measures, _ = measure_run(build_run(tmp_path / "run", [steps], Plan(facts={"profiled_steps": [3, 6]})).folder)
    assert measures.window is not None
    assert measures.window.first_step == first_step
    assert any("profiler" in sentence for sentence in measures.not_measured) == is_said


@pytest.mark.parametrize(
    ("profiled", "window"), [([90, 97], (1, 89, 1)), ([70, 75], (1, 69, 1)), ([20, 25], (27, 99, 1))]
)
def test_the_longer_stretch_beside_the_profiled_steps_is_measured(
    tmp_path: Path, profiled: list[int], window: tuple[int, int, int]
) -> None:
    steps = [
        StepPlan(forward=50 * MS, backward=(500 if profiled[0] <= k <= profiled[1] else 50) * MS) for k in range(100)
    ]
    measures, _ = measure_run(build_run(tmp_path / "run", [steps], Plan(facts={"profiled_steps": profiled})).folder)
    found = measures.window
    assert found is not None and measures.step is not None
    assert (found.first_step, found.last_step, found.num_warmup_steps) == window
    assert measures.step.p95_ns == 100 * MS
    assert measures.not_measured == ()


def _empty(path: Path, run: dict[str, object] | None = None) -> RunFolder:
    path.mkdir()
    folder = RunFolder(path)
    folder.run_json.write_text(json.dumps({"version": 1, **(run or {})}))
    return folder


def test_a_script_that_never_steps_has_no_verdict_but_advice(tmp_path: Path) -> None:
    folder = _empty(tmp_path / "run")
    rows = Rows()
    rows.add(Kind.BACKWARD, START_NS, 100)
    folder.events(0).write_bytes(b"".join(rows.blocks({"host": "n01", "torch_version": "2.13.0"})))
    measures, verdict = measure_run(folder)
    assert verdict is None
    assert any("topout.step()" in sentence for sentence in measures.not_measured)


def test_nothing_recorded_is_said(tmp_path: Path) -> None:
    measures, verdict = measure_run(_empty(tmp_path / "a"))
    assert verdict is None
    assert any("Nothing was recorded" in sentence for sentence in measures.not_measured)
    measures, _ = measure_run(_empty(tmp_path / "b", {"spec": {"record": False}}))
    assert any("--no-record" in sentence for sentence in measures.not_measured)


def test_out_of_memory_before_the_first_step_is_a_verdict(tmp_path: Path) -> None:
    folder = _empty(tmp_path / "run")
    folder.first_failure.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.")
    _, verdict = measure_run(folder)
    assert verdict is not None
    assert (verdict.name, verdict.runner_up) == ("memory-size", None)


def test_a_rank_without_steps_does_not_hide_the_others(tmp_path: Path) -> None:
    built = build_run(tmp_path / "run", MIXED[:2])
    built.folder.events(2).write_bytes(b"".join(Rows().blocks({"host": "n01"})))
    measures, verdict = measure_run(built.folder)
    assert verdict is not None
    assert [rank.rank for rank in measures.ranks] == [0, 1]
    assert any(sentence.startswith("Rank 2 completed no") for sentence in measures.not_measured)


def test_a_recording_cut_short_is_measured_and_said(tmp_path: Path) -> None:
    built = build_run(tmp_path / "run", [[StepPlan(forward=50, backward=50)] * 60] * 2)
    events = built.folder.events(1)
    events.write_bytes(events.read_bytes()[:-9])
    measures, verdict = measure_run(built.folder)
    assert verdict is not None
    assert any("rank 1 breaks off" in sentence for sentence in measures.not_measured)
    half = events.read_bytes()
    events.write_bytes(half[: len(half) * 7 // 10])
    measures, _ = measure_run(built.folder)
    assert measures.window is not None
    assert measures.window.last_step < 59


def test_notes_of_the_recorder_are_passed_on(tmp_path: Path) -> None:
    built = build_run(tmp_path / "run", MIXED[:1], Plan(facts={"notes": ["no flight recorder"]}))
    assert measure_run(built.folder)[0].not_measured == ("Rank 0: no flight recorder",)


def test_a_part_that_fails_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("topout.analyze.measure.measure_input", fail)
    measures, verdict = measure_run(build_run(tmp_path / "run", MIXED).folder)
    assert verdict is not None
    assert "Input: ZeroDivisionError: planted." in measures.not_measured
    assert measures.input.wait_share is None


def test_folders_that_are_none_or_newer_are_errors(tmp_path: Path) -> None:
    with pytest.raises(TopoutError, match="not a run folder"):
        measure_run(RunFolder(tmp_path / "nowhere"))
    with pytest.raises(TopoutError, match="newer topout"):
        measure_run(_empty(tmp_path / "run", {"version": 99}))


def test_series_hold_what_the_measures_reduce(tmp_path: Path) -> None:
    counters = {"read_bytes": [(0, 100), (S, 300), (2 * S, 300)], "resident_bytes": [(0, 5), (S, 7)]}
    built = build_run(tmp_path / "run", MIXED, Plan(transfer_ns=MS, hosts=["n01", "n01", "n02"], counters=counters))
    series, measures = load_series(built.folder), measure_run(built.folder)[0]
    assert series is not None and measures.window is not None
    assert (series.ranks, series.hosts) == ([0, 1, 2], ["n01", "n01", "n02"])
    assert series.steps.tolist() == list(range(1, 12))
    assert series.phase_ns.shape == (3, 11, len(PHASES))
    assert (series.phase_ns.sum(axis=2) == series.duration_ns).all()
    assert (series.start_ns[:, 0] == 0).all()
    assert (series.start_ns[:, -1] + series.duration_ns[:, -1] == measures.window.elapsed_ns).all()
    assert series.counters[0]["read_bytes"][1].tolist() == [200, 0]
    assert series.counters[2]["resident_bytes"][1].tolist() == [5, 7]


def test_a_folder_without_steps_has_no_series(tmp_path: Path) -> None:
    assert load_series(_empty(tmp_path / "run")) is None


@pytest.mark.parametrize("seen", ["unchanged", "replaced", "changed", None])
def test_gradients_that_change_nothing_are_said_not_to_train(tmp_path: Path, seen: str | None) -> None:
    rows = Rows()
    for step in range(20):
        rows.add(Kind.BACKWARD, START_NS + 100 * step + 50, 50)
        rows.add(Kind.STEP, START_NS + 100 * step, 100, name="backward", ref=step)
    folder = RunFolder(tmp_path)
    folder.run_json.write_text('{"version": 1}')
    folder.events(0).write_bytes(b"".join(rows.blocks({"host": "n01", "gradients_of": seen})))
    _, verdict = measure_run(folder)
    assert verdict is not None
    is_untrained = any(text.startswith("Nothing was seen to be trained") for text in verdict.evidence)
    assert is_untrained == (seen in ("unchanged", "replaced"))


@pytest.mark.parametrize(("flags", "words"), [(Flag.OFF_MAIN_THREAD, "helper threads"), (Flag.NONE, "nor enough")])
def test_backwards_in_helper_threads_are_not_said_to_be_missing(tmp_path: Path, flags: Flag, words: str) -> None:
    rows = Rows()
    rows.add(Kind.BACKWARD, START_NS, 50, flags=flags)
    folder = RunFolder(tmp_path)
    folder.run_json.write_text('{"version": 1}')
    folder.events(0).write_bytes(b"".join(rows.blocks({"host": "n01", "torch_version": "2.13"})))
    measures, _ = measure_run(folder)
    assert words in measures.not_measured[-1]
