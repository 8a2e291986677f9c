"""Verdicts: each is reached by the run that deserves it, names who is concerned, and rests on figures."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.tables import Plan, StepPlan, build_run
from topout.analyze.measure import measure_run
from topout.recommend.engine import find
from topout.schema.measures import VERDICTS, Measures, Verdict

MS = 1_000_000
PLAIN = StepPlan(input=1 * MS, forward=30 * MS, backward=60 * MS, optimizer=9 * MS, samples=32)


def _judge(path: Path, ranks: list[list[StepPlan]], plan: Plan | None = None) -> tuple[Measures, Verdict]:
    measures, verdict = measure_run(build_run(path / "run", ranks, plan).folder)
    assert verdict is not None
    assert verdict.name in VERDICTS
    assert verdict.evidence
    return measures, verdict


def test_a_job_that_only_computes_is_bound_by_compute(tmp_path: Path) -> None:
    measures, verdict = _judge(tmp_path, [[PLAIN] * 10] * 2)
    assert (verdict.name, verdict.share) == ("compute", pytest.approx(0.99))
    assert verdict.runner_up is None
    assert measures.step is not None
    assert measures.step.samples_per_s == pytest.approx(2 * 32 / 0.1)
    assert measures.step.mean_ns == measures.step.median_ns == 100 * MS


@pytest.mark.parametrize(("other_ms", "name"), [(10, "compute"), (12, "host")])
def test_a_cause_counts_from_a_tenth_of_the_time(tmp_path: Path, other_ms: int, name: str) -> None:
    # 10 of 110 is below a tenth, 12 of 112 above
    assert _judge(tmp_path, [[replace(PLAIN, other=other_ms * MS)] * 10])[1].name == name


def test_a_share_that_reads_ten_percent_is_a_tenth(tmp_path: Path) -> None:
    # 10.7 of 110.7 are 9.67 %, which every page shows as 10 %
    _, verdict = _judge(tmp_path, [[replace(PLAIN, other=10_700_000)] * 10])
    assert verdict.name == "host"
    assert verdict.share == pytest.approx(0.0967, abs=0.0001)


def test_a_forward_far_longer_than_its_backward_is_not_all_taken_for_computing(tmp_path: Path) -> None:
    _, verdict = _judge(tmp_path, [[replace(PLAIN, forward=700 * MS)] * 10])
    assert verdict.name == "compute"
    assert "Forward takes 12 times as long as backward" in verdict.evidence[1]


def test_a_usual_forward_is_computing(tmp_path: Path) -> None:
    _, verdict = _judge(tmp_path, [[replace(PLAIN, forward=110 * MS)] * 10])
    assert verdict.name == "compute"
    assert not any("times as long" in sentence for sentence in verdict.evidence)


def test_slow_input_everywhere_is_input(tmp_path: Path) -> None:
    measures, verdict = _judge(tmp_path, [[replace(PLAIN, input=101 * MS)] * 10] * 2)
    assert (verdict.name, verdict.share, verdict.phase) == ("input-decode", pytest.approx(101 / 200), "input")
    assert verdict.ranks == (0, 1)
    assert verdict.runner_up is None  # the rest is computing, which is nothing to mend
    assert measures.input.wait_share == pytest.approx(101 / 200)


def test_input_that_stalls_ranks_in_turn_is_input_not_imbalance(tmp_path: Path) -> None:
    slow = replace(PLAIN, input=101 * MS)
    ranks = [[slow if k % 2 == r else PLAIN for k in range(12)] for r in range(2)]
    measures, verdict = _judge(tmp_path, ranks)
    assert verdict.name == "input-decode"
    assert verdict.share == pytest.approx(measures.shares["input"] + measures.shares["wait"])


def test_slow_input_of_one_rank_is_imbalance_by_input(tmp_path: Path) -> None:
    ranks = [[PLAIN] * 10, [replace(PLAIN, input=101 * MS)] * 10]
    measures, verdict = _judge(tmp_path, ranks, Plan(hosts=["n01", "n02"]))
    assert (verdict.name, verdict.phase) == ("load-imbalance", "input")
    assert (verdict.ranks, verdict.hosts) == ((1,), ("n02",))
    # rank 0 waits 100 of 200 ms for what rank 1 spends in input: both halves have one cause
    assert measures.shares["wait"] == pytest.approx(0.25)
    assert verdict.share == pytest.approx(0.5)


def test_a_backward_straggler_is_named(tmp_path: Path) -> None:
    slow = replace(PLAIN, backward=110 * MS)
    measures, verdict = _judge(tmp_path, [[PLAIN] * 10, [PLAIN] * 10, [slow] * 10], Plan(hosts=["n01", "n01", "n02"]))
    assert (verdict.name, verdict.phase, verdict.ranks, verdict.hosts) == ("load-imbalance", "backward", (2,), ("n02",))
    assert verdict.share == pytest.approx(50 / 150)
    (late,) = measures.stragglers
    assert (late.rank, late.phase, late.is_persistent) == (2, "backward", True)
    assert late.excess_share == pytest.approx(50 / 150)


def test_a_late_rank_is_said_to_be_busy_longer_not_to_lengthen_its_step(tmp_path: Path) -> None:
    slow = replace(PLAIN, backward=260 * MS)
    _, verdict = _judge(tmp_path, [[PLAIN] * 10, [slow] * 10])
    # 200 of 300 ms: the step is three times as long as without it, not 67 % longer
    assert verdict.evidence[1].endswith("busy longer than the others by 67 % of a step, mostly in its backward.")


def test_a_rank_that_is_always_late_costs_what_the_others_wait_for_it(tmp_path: Path) -> None:
    # of 70 ms rank 0 waits 40 and both load 30: mean over ranks the waiting is less than the input
    both = [StepPlan(input=30 * MS, forward=5 * MS, backward=MS)] * 20
    late = [StepPlan(input=30 * MS, forward=45 * MS, backward=MS)] * 20
    measures, verdict = measure_run(build_run(tmp_path / "run", [both, late]).folder)
    assert verdict is not None
    assert measures.shares["wait"] < measures.shares["input"]
    assert (verdict.name, verdict.ranks, verdict.runner_up) == ("load-imbalance", (1,), "input-decode")
    assert verdict.share == pytest.approx(measures.ranks[0].shares["wait"])


def test_ranks_late_in_turn_are_imbalance_without_a_name(tmp_path: Path) -> None:
    slow = replace(PLAIN, backward=110 * MS)
    ranks = [[slow if k % 3 == r else PLAIN for k in range(13)] for r in range(3)]
    measures, verdict = _judge(tmp_path, ranks)
    assert (verdict.name, verdict.phase, verdict.ranks) == ("load-imbalance", "backward", ())
    assert measures.stragglers == ()


@pytest.mark.parametrize("shows_by", ["row", "mode", "loader"])
def test_one_rank_that_evaluates_for_all_is_a_serial_phase(tmp_path: Path, shows_by: str) -> None:
    busy = [replace(PLAIN, evaluation=200 * MS * (k % 5 == 0)) for k in range(11)]
    measures, verdict = _judge(tmp_path, [busy, [PLAIN] * 11], Plan(evaluation_by=shows_by))
    # 10 steps of 100 ms, two of them with 200 ms of evaluation on rank 0
    assert (verdict.name, verdict.phase, verdict.ranks) == ("serial-phase", "evaluation", (0,))
    assert verdict.share == pytest.approx(400 / 1400)
    assert measures.serial.evaluation_share == pytest.approx(200 / 1400)
    # rank 1 trains for its 91 ms before it waits
    assert measures.serial.single_rank_share == pytest.approx((400 - 2 * 91) / 1400)
    assert measures.serial.single_rank_evaluation_share == measures.serial.single_rank_share
    assert measures.serial.num_waiting == 1


def test_one_rank_that_saves_for_all_does_not_evaluate(tmp_path: Path) -> None:
    saves = [replace(PLAIN, checkpoint=200 * MS * (k % 5 == 0)) for k in range(11)]
    measures, verdict = _judge(tmp_path, [saves, [PLAIN] * 11])
    assert (verdict.name, verdict.phase, verdict.ranks) == ("serial-phase", "checkpoint", (0,))
    assert measures.serial.single_rank_share == pytest.approx((400 - 2 * 91) / 1400)
    assert (measures.serial.single_rank_evaluation_share, measures.serial.num_waiting) == (0.0, None)
    assert [finding.code for finding in find(measures) if finding.code in ("CK01", "EV01")] == ["CK01"]


def test_ranks_that_wait_for_an_evaluation_of_some_are_counted(tmp_path: Path) -> None:
    both = [replace(PLAIN, evaluation=200 * MS * (k % 5 == 0), checkpoint=100 * MS * (k % 5 == 0)) for k in range(11)]
    measures, _ = _judge(tmp_path, [both, both, *[[PLAIN] * 11] * 6])
    # the six others train for 91 ms of each evaluation before they wait
    assert measures.serial.single_rank_share == pytest.approx((600 - 2 * 91) / 1600)
    assert measures.serial.single_rank_evaluation_share == pytest.approx((400 - 2 * 91) / 1600)
    assert measures.serial.num_waiting == pytest.approx(6)
    (finding,) = [finding for finding in find(measures) if finding.code == "EV01"]
    assert "6 of 8 ranks wait" in finding.because


def test_only_what_took_time_is_told_of_serial_phases(tmp_path: Path) -> None:
    busy = [replace(PLAIN, evaluation=100 * MS)] * 10
    assert _judge(tmp_path / "1", [busy])[1].evidence == ("Evaluation takes 50 % of the time.",)
    (told,) = _judge(tmp_path / "2", [busy, busy])[1].evidence
    assert told == "Evaluation takes 50 % of the ranks' time; with those who wait meanwhile 50 %."


@pytest.mark.parametrize(("peak", "is_told"), [(1e6, False), (1e9, True)])
def test_computing_without_arithmetic_is_told(tmp_path: Path, peak: float, is_told: bool) -> None:
    # 20 000 FLOPs in 100 ms are 200 kFLOP/s
    plan = Plan(facts={"flops_per_step": 20_000, "measured_peak_flops_per_s": peak})
    _, verdict = _judge(tmp_path, [[PLAIN] * 10], plan)
    assert verdict.name == "compute"
    share = "less than 1 %" if is_told else "20 %"
    assert verdict.evidence[1] == f"200 kFLOP/s are {share} of the peak (measured with a matrix product)."
    assert any("Hardly any of it is arithmetic" in sentence for sentence in verdict.evidence) == is_told


def test_without_a_count_of_arithmetic_the_profile_is_named(tmp_path: Path) -> None:
    _, verdict = _judge(tmp_path, [[PLAIN] * 10])
    assert verdict.evidence[1] == "Whether memory sets the pace was not measured: --profile 20-29 tells it."


@pytest.mark.parametrize(("shows_by", "steps"), [("row", None), ("mode", 2.0), ("loader", None)])
def test_evaluations_told_by_a_mode_alone_may_be_rollouts(tmp_path: Path, shows_by: str, steps: float | None) -> None:
    busy = [replace(PLAIN, evaluation=200 * MS * (k % 2)) for k in range(11)]
    measures, verdict = _judge(tmp_path, [busy, busy], Plan(evaluation_by=shows_by))
    assert (verdict.name, verdict.phase) == ("serial-phase", "evaluation")
    assert measures.serial.steps_per_rollout == steps
    (finding,) = [finding for finding in find(measures) if finding.code == "EV02"]
    for told in (" ".join(verdict.evidence), finding.because):
        assert ("rollouts" in told) == (steps is not None)


def test_one_rank_that_evaluates_for_all_makes_no_rollouts(tmp_path: Path) -> None:
    busy = [replace(PLAIN, evaluation=200 * MS * (k % 2)) for k in range(11)]
    measures, _ = _judge(tmp_path, [busy, [PLAIN] * 11], Plan(evaluation_by="mode"))
    assert measures.serial.steps_per_rollout is None


def test_a_last_evaluation_of_one_rank_is_a_serial_phase(tmp_path: Path) -> None:
    measures, verdict = _judge(tmp_path, [[PLAIN] * 11] * 2, Plan(trail_evaluation_ns=[1000 * MS, 0]))
    assert (verdict.name, verdict.phase, verdict.ranks) == ("serial-phase", "evaluation", (0,))
    assert measures.serial.single_rank_share == pytest.approx(0.5)
    assert verdict.share == pytest.approx(0.5)
    assert measures.step is not None
    assert measures.step.p95_ns == 100 * MS


def test_blocking_checkpoints_of_all_ranks_are_a_serial_phase(tmp_path: Path) -> None:
    saves = [replace(PLAIN, checkpoint=50 * MS * (k % 2)) for k in range(11)]
    measures, verdict = _judge(tmp_path, [saves] * 2)
    assert (verdict.name, verdict.phase) == ("serial-phase", "checkpoint")
    assert verdict.share == measures.serial.checkpoint_share == pytest.approx(250 / 1250)
    assert measures.serial.single_rank_share == 0.0


@pytest.mark.parametrize(
    ("bucket_bytes", "name"), [(4 << 20, "communication-bandwidth"), (4 << 10, "communication-latency")]
)
def test_exposed_transfer_is_latency_or_bandwidth_by_the_size_of_messages(
    tmp_path: Path, bucket_bytes: int, name: str
) -> None:
    plan = Plan(transfer_ns=100 * MS, bucket_bytes=bucket_bytes, facts={"backend": "gloo"})
    measures, verdict = _judge(tmp_path, [[PLAIN] * 10] * 2, plan)
    assert (verdict.name, verdict.share, verdict.phase) == (name, pytest.approx(0.5), "transfer")
    communication = measures.communication
    assert (communication.mean_message_bytes, communication.num_collectives_per_step) == (bucket_bytes, 2)
    assert communication.bytes_per_s == pytest.approx(2 * bucket_bytes / 0.1)
    assert (communication.wait_share, communication.clock_skew_ns, communication.backend) == (0.0, 0.0, "gloo")


def test_waiting_across_hosts_is_told_when_collectives_tie_their_clocks(tmp_path: Path) -> None:
    slow = replace(PLAIN, backward=110 * MS)
    plan = Plan(transfer_ns=MS, hosts=["n01", "n02"], clock_error_ns=[0, 700 * MS])
    measures, verdict = _judge(tmp_path, [[PLAIN] * 10, [slow] * 10], plan)
    assert (verdict.name, verdict.ranks) == ("load-imbalance", (1,))
    assert measures.communication.wait_share == pytest.approx(0.5 * 50 / 151)


def test_the_split_is_withheld_when_nothing_ties_the_clocks(tmp_path: Path) -> None:
    plan = Plan(transfer_ns=50 * MS, hosts=["n01", "n02"], clock_error_ns=[0, 3 * MS], num_buckets=1)
    measures, verdict = _judge(tmp_path, [[PLAIN] * 2] * 2, plan)  # two ends in common are too few
    assert (measures.communication.clock_skew_ns, measures.communication.is_split_withheld) == (None, True)
    assert measures.communication.wait_share is None
    assert measures.shares["wait"] == 0
    assert measures.communication.transfer_share == measures.shares["transfer"] > 0.3
    assert any("clocks" in sentence for sentence in verdict.evidence)


def test_out_of_memory_is_the_verdict_whatever_else_holds(tmp_path: Path) -> None:
    facts = {
        "batch_size": 256, "parameter_bytes": 10 << 30, "gradient_bytes": 10 << 30, "optimizer_bytes": 20 << 30,
        "peak_device_bytes": 78 << 30, "device_total_bytes": 80 << 30,
        "out_of_memory": {"text": "CUDA out of memory", "requested_bytes": 12 << 30, "device": "cuda"},
    }  # fmt: skip
    measures, verdict = measure_run(build_run(tmp_path / "run", [[PLAIN] * 3], Plan(facts=facts)).folder)
    assert verdict is not None
    assert (verdict.name, verdict.share, verdict.runner_up) == ("memory-size", 1.0, "compute")
    # 40 GiB are fixed; 50 of 90 GiB grow with the batch, and 40 are left for them
    assert measures.memory.largest_batch == 256 * 40 // 50
    assert any("12 GiB" in sentence for sentence in verdict.evidence)
    assert any("10 GiB parameters" in sentence for sentence in verdict.evidence)
