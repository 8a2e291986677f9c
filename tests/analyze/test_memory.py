"""Memory: peaks, failures for lack of it, and the batch that would fit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tables import Plan, StepPlan, build_run
from topout.analyze.counters import covers
from topout.analyze.measure import measure_run
from topout.recommend.engine import find
from topout.schema.measures import Measures, Memory, Verdict
from topout.trace.table import Counter

GIB = 1 << 30
S = 1_000_000_000
PLAIN = StepPlan(input=1, forward=30, backward=60, optimizer=9)
CUDA = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 80 GiB"
CPU = "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes. Error code 12"
KILLED = "Rank 1 died by SIGKILL.\n  why  out of memory: the kernel killed 1 process during this run"


def _measure(path: Path, failure: str | None = None, **plan: Any) -> tuple[Memory, Verdict | None]:
    built = build_run(path / "run", [[PLAIN] * 4] * 2, Plan(**plan))
    if failure is not None:
        built.folder.first_failure.write_text(failure)
    measures, verdict = measure_run(built.folder)
    return measures.memory, verdict


@pytest.mark.parametrize(
    ("failure", "requested"),
    [(CUDA, int(2.5 * GIB)), (CPU, 4096), (KILLED, None), ("Traceback:\nMemoryError", None)],
)
def test_a_failure_for_lack_of_memory_is_recognised(tmp_path: Path, failure: str, requested: int | None) -> None:
    memory, verdict = _measure(tmp_path, failure)
    assert (memory.is_out_of_memory, memory.requested_bytes) == (True, requested)
    assert verdict is not None and verdict.name == "memory-size"


@pytest.mark.parametrize("failure", ["ValueError: no memory of that", "died by SIGKILL; no out-of-memory kill", None])
def test_other_failures_are_not(tmp_path: Path, failure: str | None) -> None:
    memory, verdict = _measure(tmp_path, failure)
    assert not memory.is_out_of_memory
    assert verdict is not None and verdict.name != "memory-size"


def test_the_peak_of_a_rank_counts_its_workers(tmp_path: Path) -> None:
    counters = {
        "resident_bytes": [(0, 100), (10, 300), (20, 200)],
        "worker_resident_bytes": [(0, 50), (10, 50), (20, 350)],
    }
    hosts = [{"name": "n01", "memory_bytes": 4000}]
    memory, _ = _measure(tmp_path, counters=counters, run={"hosts": hosts}, facts={"batch_size": 8})
    assert (memory.peak_host_bytes, memory.host_total_bytes, memory.peak_device_bytes) == (550, 4000, None)
    # two ranks share the host: 2000 bytes each, of which a batch of 8 takes 550
    assert memory.largest_batch == 8 * 2000 // 550


def test_a_batch_that_failed_is_too_large_whatever_the_prediction(tmp_path: Path) -> None:
    facts = {"batch_size": 8, "peak_device_bytes": 10 * GIB, "device_total_bytes": 80 * GIB}
    assert _measure(tmp_path / "a", facts=facts)[0].largest_batch == 64
    assert _measure(tmp_path / "b", CUDA, facts=facts)[0].largest_batch == 7


def test_a_single_sample_that_failed_predicts_no_batch(tmp_path: Path) -> None:
    facts = {"batch_size": 1, "peak_device_bytes": 70 * GIB, "device_total_bytes": 80 * GIB}
    assert _measure(tmp_path, CUDA, facts=facts)[0].largest_batch is None


@pytest.mark.parametrize("told", [None, {"text": "CUDA out of memory", "requested_bytes": GIB, "device": "cuda"}])
def test_a_full_device_is_not_explained_by_the_host(tmp_path: Path, told: dict[str, Any] | None) -> None:
    """Of the device nothing is known, as in recordings that ended in their first step."""
    facts = {"batch_size": 64, "peak_resident_bytes": 4 * GIB, "out_of_memory": told}
    memory, verdict = _measure(tmp_path, CUDA, facts=facts, run={"hosts": [{"name": "n01", "memory_bytes": 512 * GIB}]})
    assert (memory.ran_out_on, memory.host_total_bytes, memory.largest_batch) == ("device", 512 * GIB, None)
    assert verdict is not None and not any("host" in sentence for sentence in verdict.evidence)


@pytest.mark.parametrize("failure", [CPU, KILLED])
def test_a_full_host_is_not_explained_by_the_device(tmp_path: Path, failure: str) -> None:
    facts = {"peak_resident_bytes": 4 * GIB, "peak_device_bytes": 10 * GIB, "device_total_bytes": 80 * GIB}
    of_the_model = {"batch_size": 64, "parameter_bytes": GIB, "gradient_bytes": GIB, "optimizer_bytes": 2 * GIB}
    memory, verdict = _measure(
        tmp_path, failure, facts=facts | of_the_model, run={"hosts": [{"name": "n01", "memory_bytes": 5 * GIB}]}
    )
    assert (memory.ran_out_on, memory.largest_batch) == ("host", None)
    assert verdict is not None and not any("What filled it" in sentence for sentence in verdict.evidence)
    assert "The largest rank held 4 GiB; the host has 5 GiB." in verdict.evidence


@pytest.mark.parametrize(
    ("peak_device", "on_host", "offloaded", "is_beside", "batch"),
    [
        # some of the state, or all of it, of a model that computes on the device
        (10 * GIB, 2 * GIB, 2 * GIB, True, None),
        (10 * GIB, 3 * GIB, 3 * GIB, True, None),
        # a small model on the device: counts of steps lie on the host
        (GIB // 4, 4096, None, True, None),
        # trained on the CPU, beside a GPU that somebody looked at
        (0, 3 * GIB, None, False, 7),
    ],
)
def test_what_lies_on_a_full_host_beside_devices_is_told_apart(
    tmp_path: Path, peak_device: int, on_host: int, offloaded: int | None, is_beside: bool, batch: int | None
) -> None:
    facts = {"parameter_bytes": GIB, "optimizer_bytes": 2 * GIB, "host_state_bytes": on_host, "batch_size": 8}
    facts |= {"peak_resident_bytes": 4 * GIB, "peak_device_bytes": peak_device, "device_total_bytes": 80 * GIB}
    hosts = [{"name": "n01", "memory_bytes": 10 * GIB}]
    memory, verdict = _measure(tmp_path, KILLED, facts=facts, run={"hosts": hosts})
    told = (memory.offloaded_bytes, memory.ran_out_beside_devices, memory.largest_batch)
    assert told == (offloaded, is_beside, batch)
    assert verdict is not None and any("What filled it" in sentence for sentence in verdict.evidence) is not is_beside
    (finding,) = [found for found in find(Measures(memory=memory)) if found.code in ("ME02", "ME03")]
    assert finding.code == ("ME03" if is_beside else "ME02")
    assert ("offloaded to it" in finding.because) is (offloaded is not None)


def test_without_a_batch_size_no_batch_is_predicted(tmp_path: Path) -> None:
    facts = {"peak_device_bytes": 10 * GIB, "device_total_bytes": 80 * GIB}
    assert _measure(tmp_path, facts=facts)[0].largest_batch is None


SECOND = StepPlan(input=S // 10, forward=S * 3 // 10, backward=S * 6 // 10)


def _grow(per_s: int, until_s: int = 20) -> list[tuple[int, int]]:
    return [(second * S, second * per_s) for second in range(until_s)]


def _faults(path: Path, step: StepPlan = SECOND, **counters: Any) -> Memory:
    """Of two ranks, eleven steps of which the first is warm-up."""
    given = {"page_faults": _grow(50_000), "system_ns": _grow(S * 3 // 10), "cpu_ns": _grow(S * 15 // 10)}
    known = {name: samples for name, samples in (given | counters).items() if samples is not None}
    return measure_run(build_run(path / "run", [[step] * 11] * 2, Plan(counters=known)).folder)[0].memory


@pytest.mark.parametrize(
    ("faults_per_s", "system_ns_per_s", "share"),
    [
        # 3 µs for each, of 1.5 s of processor time a second
        (50_000, S * 3 // 10, 0.1),
        # no more than the kernel took
        (50_000, S * 6 // 100, 0.04),
        (0, S * 3 // 10, 0.0),
    ],
)
def test_page_faults_are_those_of_a_rank_in_a_step_and_cost_kernel_time(
    tmp_path: Path, faults_per_s: int, system_ns_per_s: int, share: float
) -> None:
    memory = _faults(tmp_path, page_faults=_grow(faults_per_s), system_ns=_grow(system_ns_per_s))
    assert memory.faults_per_step == pytest.approx(faults_per_s)
    assert memory.fault_share == pytest.approx(share)


def test_a_step_of_two_seconds_has_the_faults_of_two_seconds(tmp_path: Path) -> None:
    memory = _faults(tmp_path, step=StepPlan(forward=S, backward=S))
    assert memory.faults_per_step == pytest.approx(100_000)


@pytest.mark.parametrize("missing", ["page_faults", "system_ns", "cpu_ns"])
def test_page_faults_that_an_older_recording_did_not_count_are_not_measured(tmp_path: Path, missing: str) -> None:
    memory = _faults(tmp_path, **{missing: None})
    assert (memory.faults_per_step, memory.fault_share) == (None, None)


def test_faults_before_the_steps_do_not_stand_in_for_theirs(tmp_path: Path) -> None:
    """Torch's own loading takes 60,000; where samples end with it, nothing is known of the steps."""
    start = [(-4 * S, 0), (-S, 60_000), (S * 3 // 2, 60_000)]
    assert _faults(tmp_path / "ended", page_faults=start).faults_per_step is None
    assert _faults(tmp_path / "short", step=StepPlan(forward=S // 50, backward=S // 50)).faults_per_step is None
    went_on = [*start, *((second * S, 60_000 + 10 * second) for second in range(2, 20))]
    assert _faults(tmp_path / "on", page_faults=went_on).faults_per_step < 20


def test_a_counter_covers_a_window_that_its_samples_reach_into() -> None:
    counter = Counter(times_ns=np.array([0, 10 * S]), values=np.array([0, 1]))
    one = Counter(times_ns=np.array([5 * S]), values=np.array([1]))
    assert covers(counter, 9 * S, 20 * S) and covers(counter, -S, S)
    assert not covers(counter, 9 * S + S // 2, 20 * S) and not covers(counter, 11 * S, 20 * S)
    assert not covers(one, 0, 10 * S) and not covers(None, 0, 10 * S)


@pytest.mark.parametrize(
    ("told", "is_named"),
    [
        ({}, True),
        ({"keeps_memory": True}, False),
        ({"keeps_memory": False}, False),
        ({"device_total_bytes": 80 * GIB}, False),
    ],
    ids=["on a CPU", "memory is kept already", "it was asked for in vain", "on a GPU"],
)
def test_memory_that_goes_back_is_advised_against_where_it_can_be_kept(
    tmp_path: Path, told: dict[str, Any], is_named: bool
) -> None:
    counters = {"page_faults": _grow(50_000), "system_ns": _grow(S * 3 // 10), "cpu_ns": _grow(S * 15 // 10)}
    built = build_run(tmp_path / "run", [[SECOND] * 11] * 2, Plan(counters=counters, facts=told))
    measures, _ = measure_run(built.folder)
    assert measures.memory.is_kept is told.get("keeps_memory")
    found = [finding for finding in find(measures) if finding.code == "ME04"]
    assert len(found) == is_named
    # 90 % of the time computes
    assert [finding.gain_at_most for finding in found] == pytest.approx([0.09] * is_named)
