"""Input: what the loader spends its time on, from sampled states and counters."""

from pathlib import Path

import numpy as np
import pytest

from tests.tables import Plan, StepPlan, build_run
from topout.analyze.counters import growth_per_s
from topout.analyze.measure import measure_run
from topout.recommend.engine import find
from topout.schema.measures import Input
from topout.trace.table import Counter

MS = 1_000_000
S = 1_000_000_000
KIB = 1024
SLOW = StepPlan(input=900 * MS, forward=30 * MS, backward=60 * MS, optimizer=10 * MS, samples=8)


def _grow(per_s: int) -> list[tuple[int, int]]:
    return [(second * S, second * per_s) for second in range(13)]


def _input(path: Path, num_workers: int = 2, **per_s: int) -> Input:
    counters = {name: _grow(rate) for name, rate in per_s.items()}
    plan = Plan(counters=counters, facts={"num_workers": num_workers, "batch_size": 8})
    return measure_run(build_run(path / "run", [[SLOW] * 11], plan).folder)[0].input


def _states(running: int, opening: int, reading: int, waiting: int) -> dict[str, int]:
    names = ("running", "opening", "reading", "waiting")
    return {
        f"input_samples_{name}": value for name, value in zip(names, (running, opening, reading, waiting), strict=True)
    }


@pytest.mark.parametrize(
    ("states", "opens", "read_bytes", "limit"),
    [
        ((15, 1, 2, 2), 100, 100 * 400 * KIB, "decode"),
        ((2, 12, 4, 2), 100, 100 * 400 * KIB, "iops"),
        ((2, 2, 14, 2), 100, 100 * 400 * KIB, "bandwidth"),
        ((2, 2, 14, 2), 100, 100 * 4 * KIB, "iops"),
        ((20, 0, 0, 0), 60_000, 60_000 * 4 * KIB, "iops"),
        ((1, 0, 18, 1), 0, 10**9, "bandwidth"),
        ((2, 8, 8, 2), 0, 0, "decode"),
    ],
)
def test_the_limit_is_where_the_loader_spends_its_time(
    tmp_path: Path, states: tuple[int, int, int, int], opens: int, read_bytes: int, limit: str
) -> None:
    found = _input(tmp_path, file_opens=opens, read_bytes=read_bytes, read_calls=1000, **_states(*states))
    assert found.limit == limit


def test_figures_are_per_second_and_over_all_states(tmp_path: Path) -> None:
    found = _input(tmp_path, file_opens=50, read_bytes=5000, read_calls=10, directory_scans=3, **_states(5, 3, 2, 10))
    assert (found.opens_per_s, found.read_bytes_per_s, found.read_calls_per_s) == (50, 5000, 10)
    assert (found.directory_scans_per_s, found.mean_read_bytes) == (3, 500)
    assert (found.running_share, found.opening_share, found.reading_share) == (0.25, 0.15, 0.1)
    assert (found.num_workers, found.batch_size) == (2, 8)
    assert found.wait_share == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("num_workers", "waiting", "worker_cpu_ns", "limit"),
    [(2, 18, 0, "bandwidth"), (0, 18, 0, "bandwidth"), (2, 8, 0, "decode"), (2, 18, 2 * 10**9, "decode")],
)
def test_a_loader_that_waits_while_ranks_starve_waits_for_something_outside(
    tmp_path: Path, num_workers: int, waiting: int, worker_cpu_ns: int, limit: str
) -> None:
    # two seconds of processor time a second in two idle processes: threads of theirs transform
    seen = _states(20 - waiting, 0, 0, waiting)
    found = _input(tmp_path, num_workers, read_bytes=1000, read_calls=10, worker_cpu_ns=worker_cpu_ns, **seen)
    assert found.limit == limit


def test_one_busy_process_of_many_holds_up_all_of_them(tmp_path: Path) -> None:
    # 8 workers, of which one or another transforms at any time
    seen = _states(20, 0, 0, 140)
    assert _input(tmp_path, 8, read_bytes=1000, read_calls=10, **seen).limit == "decode"


def test_a_rank_that_unpacks_its_batches_all_the_time_waits_for_nothing_outside(tmp_path: Path) -> None:
    seen = _states(1, 0, 0, 19)
    assert _input(tmp_path, 2, read_bytes=1000, read_calls=10, cpu_ns=10**9, **seen).limit == "decode"


def test_a_loader_may_be_idle_while_ranks_compute(tmp_path: Path) -> None:
    counters = {name: _grow(rate) for name, rate in _states(6, 0, 0, 14).items()}
    seldom = StepPlan(input=300 * MS, forward=600 * MS, backward=100 * MS)
    plan = Plan(counters=counters, facts={"num_workers": 2})
    assert measure_run(build_run(tmp_path / "run", [[seldom] * 11], plan).folder)[0].input.limit == "decode"


def test_single_opens_are_not_told_of(tmp_path: Path) -> None:
    for opens, is_told in ((2, False), (200, True)):
        plan = Plan(counters={"file_opens": _grow(opens)})
        _, verdict = measure_run(build_run(tmp_path / str(opens), [[SLOW] * 11], plan).folder)
        assert verdict is not None
        assert any("files are opened every second" in sentence for sentence in verdict.evidence) == is_told


def test_the_evidence_says_that_the_loader_waits_outside(tmp_path: Path) -> None:
    counters = {name: _grow(rate) for name, rate in _states(1, 0, 0, 19).items()}
    plan = Plan(counters=counters, facts={"num_workers": 2})
    _, verdict = measure_run(build_run(tmp_path / "run", [[SLOW] * 11], plan).folder)
    assert verdict is not None
    assert verdict.name == "input-bandwidth"
    assert any("95 % of the cases it waited for something outside" in sentence for sentence in verdict.evidence)


@pytest.mark.parametrize(("running", "is_said"), [(20, True), (140, False)])
def test_the_evidence_says_that_workers_are_idle(tmp_path: Path, running: int, is_said: bool) -> None:
    counters = {name: _grow(rate) for name, rate in _states(running, 0, 0, 160 - running).items()}
    plan = Plan(counters=counters, facts={"num_workers": 8})
    measures, verdict = measure_run(build_run(tmp_path / "run", [[SLOW] * 11], plan).folder)
    assert verdict is not None
    assert verdict.name == "input-decode"
    # 12.5 % of the looks, and ranks wait for 90 % of the time
    assert ("At most 14 % of its 8 workers were at work while ranks waited for them." in verdict.evidence) is is_said
    codes = {finding.code for finding in find(measures)}
    assert codes & {"IN01", "IN04"} == ({"IN04"} if is_said else {"IN01"})


def test_a_rank_that_loads_by_itself_is_judged_by_its_time_in_input(tmp_path: Path) -> None:
    # of 0.9 s of input a second 0.5 s are blocked in reading; that the rank also computes must not dilute it
    found = _input(tmp_path, 0, file_opens=1, read_bytes=10**9, read_calls=1000, **_states(5, 0, 5, 0))
    assert found.limit == "bandwidth"


def test_reading_at_the_speed_of_the_page_cache_costs_kernel_time_and_is_still_reading(tmp_path: Path) -> None:
    fast = {"file_opens": 10, "read_bytes": 2 * 10**9, "read_calls": 500, **_states(10, 0, 0, 0)}
    assert _input(tmp_path, 0, **fast, system_ns=700_000_000).limit == "bandwidth"
    assert _input(tmp_path / "user", 0, **fast, system_ns=10_000_000).limit == "decode"


def test_without_counters_only_the_wait_is_known(tmp_path: Path) -> None:
    measures, _ = measure_run(build_run(tmp_path / "run", [[SLOW] * 4]).folder)
    assert (measures.input.opens_per_s, measures.input.running_share) == (None, None)
    assert measures.input.limit == "decode"


def test_nothing_limits_an_input_that_is_not_waited_for(tmp_path: Path) -> None:
    quick = StepPlan(input=0, forward=50, backward=50)
    measures, _ = measure_run(build_run(tmp_path / "run", [[quick] * 4]).folder)
    assert measures.input.limit is None


def _counter(*samples: tuple[float, int]) -> Counter:
    times_s, values = zip(*samples, strict=True)
    return Counter(times_ns=np.array(times_s, dtype=np.int64) * S, values=np.array(values, dtype=np.int64))


def test_growth_is_taken_inside_the_window() -> None:
    counter = _counter((0, 0), (10, 1000), (20, 1000), (30, 3000))
    assert growth_per_s(counter, 10 * S, 20 * S) == 0
    assert growth_per_s(counter, 20 * S, 30 * S) == 200
    assert growth_per_s(counter, 5 * S, 25 * S) == pytest.approx((500 + 0 + 1000) / 20)


def test_a_worker_that_ends_takes_nothing_away() -> None:
    assert growth_per_s(_counter((0, 0), (10, 100), (20, 40), (30, 90)), 0, 30 * S) == pytest.approx(150 / 30)


def test_a_window_shorter_than_the_sampling_takes_the_whole_run() -> None:
    counter = _counter((0, 0), (10, 1000))
    assert growth_per_s(counter, 3 * S, 3 * S + 1000) == 100
    assert growth_per_s(_counter((0, 5)), 0, S) is None
    assert growth_per_s(None, 0, S) is None


def test_a_loader_that_was_never_sampled_is_still_judged_by_its_files(tmp_path: Path) -> None:
    states = _states(running=0, opening=0, reading=0, waiting=0)
    found = _input(tmp_path, file_opens=0, read_bytes=0, **states)
    assert (found.limit, found.running_share) == ("decode", None)
