"""Which number of nodes a plan recommends, where the answer can be worked out by hand."""

import json
from dataclasses import replace

import pytest

from tests.tables import Plan, StepPlan, build_run
from topout.cli.main import call
from topout.schema.errors import TopoutError
from topout.schema.event import NOT_GIVEN
from topout.schema.measures import NoiseScale
from topout.study.critical_batch import from_noise_scale, from_probe, given
from topout.study.description import Ranged, put, read_job, read_system
from topout.study.devices import Prices
from topout.study.plan import Deadline, plan
from topout.study.target_loss import Target
from topout.study.work import Work, to_target

JOB = read_job("resnet50-v100").value
PERFECT = replace(
    put(JOB, ("compute", "transient"), 0.0), gradients=replace(JOB.gradients, bytes=0.0, negotiation="none")
)
SYSTEM = Ranged(read_system("summit").value, {})


def test_without_losses_and_limits_every_node_halves_the_time_at_the_same_cost():
    found = plan(Ranged(PERFECT, {}), SYSTEM, Work(samples=1e9), [1, 2, 4])
    hours = [choice.hours for choice in found.choices]
    assert hours[0] == pytest.approx(1e9 / (6 * 256 / 0.342) / 3600, rel=1e-3)
    assert hours[1:] == pytest.approx([hours[0] / 2, hours[0] / 4], rel=1e-3)
    assert found.fastest.nodes == 4


def test_a_serial_evaluation_of_each_epoch_stays_whatever_the_nodes():
    """90 epochs of 195 steps of 0.1 s on one node, and 5 s after each that no node shortens."""
    epoch = 195 * 256
    evaluation = replace(JOB.evaluation, samples=5, samples_per_s=1.0, every_samples=epoch, is_sharded=False)
    compute = replace(PERFECT.compute, forward_s=0.04, backward_s=0.06, optimizer_s=0.0)
    job = replace(PERFECT, compute=compute, evaluation=evaluation)
    system = Ranged(replace(SYSTEM.value, ranks_per_node=1), {})
    found = plan(Ranged(job, {}), system, Work(samples=90 * epoch), [1, 32])
    assert found.choices[0].hours * 3600 == pytest.approx(90 * (19.5 + 5), rel=1e-3)
    assert found.choices[1].hours * 3600 == pytest.approx(90 * (19.5 / 32 + 5), rel=2e-3)


def test_at_the_critical_batch_training_costs_twice_the_samples():
    batch = 6 * 256
    found = plan(Ranged(PERFECT, {}), SYSTEM, Work(samples=1e9, critical_batch=(batch, batch, batch)), [1, 2, 4, 8])
    free = plan(Ranged(PERFECT, {}), SYSTEM, Work(samples=1e9), [1])
    assert found.choices[0].hours == pytest.approx(2 * free.choices[0].hours, rel=1e-3)
    # T ~ 1 + 1/n and cost ~ n + 1, so their product is least at n = 1
    assert found.best_value.nodes == found.cheapest.nodes == 1
    assert found.fastest.nodes == 8
    assert any("exceeds the critical one" in note for note in found.notes)


def test_best_value_lies_where_the_batch_reaches_the_critical_one():
    critical = 8 * 6 * 256
    found = plan(Ranged(PERFECT, {}), SYSTEM, Work(samples=1e9, critical_batch=(critical, critical, critical)),
                 [1, 2, 4, 8, 16, 32])  # fmt: skip
    assert found.best_value.nodes == 8


def test_a_doubtful_critical_batch_makes_the_hours_doubtful():
    wide = plan(Ranged(PERFECT, {}), SYSTEM, Work(samples=1e9, critical_batch=(1000, 500, 2000)), [8]).choices[0]
    assert wide.low_hours < 0.65 * wide.hours
    assert wide.high_hours > 1.6 * wide.hours


def test_a_training_takes_whole_steps():
    batch = 6 * 256
    found = plan(Ranged(PERFECT, {}), SYSTEM, Work(samples=2.5 * batch), [1, 2, 64])
    assert [choice.steps for choice in found.choices] == [3, 2, 1]
    assert found.choices[0].hours == pytest.approx(3 * 0.342 / 3600, rel=1e-3)
    assert found.choices[2].hours == pytest.approx(0.342 / 3600, rel=1e-3)
    # 1.152e8 / 1536 x (1 + 1536 / 12000), which floats make a little more of
    assert Work(samples=1.28e6 * 90).steps_at(1536, 12_000.0) == 84_600


def test_a_batch_larger_than_the_work_is_no_best_value():
    found = plan(Ranged(PERFECT, {}), SYSTEM, Work(samples=1e5), [1, 16, 64, 128, 4608])
    # 64 nodes train 98,304 samples a step; one step of 128 would be less time times node-hours
    assert found.best_value.nodes == 64
    assert any("From 128 nodes on the batch (196,608) is larger than all there is" in note for note in found.notes)
    alone = plan(Ranged(PERFECT, {}), SYSTEM, Work(samples=10), [4608, 1])
    assert alone.recommended.nodes == 1


def test_a_plan_is_in_the_order_of_nodes_whatever_was_asked():
    found = plan(Ranged(PERFECT, {}), SYSTEM, Work(samples=1e9, critical_batch=(1e4, 1e4, 1e4)), [16, 8, 1, 8])
    assert [choice.nodes for choice in found.choices] == [1, 8, 16]
    assert found.choices[0].efficiency == 1
    assert found.choices[2].efficiency < found.choices[1].efficiency < 1


def test_a_plan_says_what_it_does_not_know():
    found = plan(Ranged(PERFECT, {}), SYSTEM, Work(samples=1e9), [1, 2])
    assert any("critical batch is not known" in note for note in found.notes)
    assert any("tuned again" in note for note in found.notes)


def test_nothing_to_train_is_an_error():
    with pytest.raises(TopoutError, match="nothing to train"):
        plan(Ranged(PERFECT, {}), SYSTEM, Work(samples=0), [1])
    with pytest.raises(TopoutError, match="nothing to train"):
        plan(Ranged(PERFECT, {}), SYSTEM, Work(samples=float("nan")), [1])


def test_plan_writes_the_request(capsys):
    words = ["--samples", "1.28e6", "--epochs", "90", "--critical-batch", "12000:9000:16000", "--max-nodes", "64"]
    assert call(["plan", "resnet50-v100", "--system", "summit", *words]) == 0
    text = capsys.readouterr().out
    assert "topout submit --nodes 8" in text
    assert call(["plan", "resnet50-v100", "--system", "summit", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["best_value"]["nodes"] == 8


def test_a_mistake_is_answered_with_the_option_or_the_file_it_is_in(tmp_path, capsys):
    for words, told in (
        (["plan", "resnet50-v100", "--system", "summit", "--samples", "1e6", "--within", "5"], "try --within 2h"),
        (["simulate", "resnet50-v100", "--system", "summit", "--failures", "30"], "try --failures 2h"),
        (["simulate", "absent.toml", "--system", "summit"], "do   check the path, or name one of"),
        (["analyze", __file__], "why  it is a file"),
    ):
        assert call(words) == 2
        assert told in capsys.readouterr().err


def test_a_mesh_that_cannot_be_written_is_said_first(tmp_path, capsys):
    words = ["--samples", "1e6", "--mesh", str(tmp_path / "absent" / "m.toml")]
    assert call(["plan", "resnet50-v100", "--system", "summit", *words]) == 2
    assert "There is no folder" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["x", "0", "3:2:1", "1:2"])
def test_a_critical_batch_is_a_number_with_or_without_its_range(text, capsys):
    assert call(["plan", "resnet50-v100", "--system", "summit", "--samples", "1e6", "--critical-batch", text]) == 2
    assert "no critical batch" in capsys.readouterr().err


def reached(samples, low, high):
    return Target(loss=1, samples=samples, low=low, high=high, floor=0, floor_low=0, floor_high=0, exponent=1,
                  seen_samples=samples, is_seen=True)  # fmt: skip


def test_a_batch_of_the_curve_is_taken_out_of_its_samples():
    target = reached(3e6, 2e6, 4e6)
    work = to_target(target, 500, (1000, 1000, 1000))
    # E (1 + 500 / 1000) = 3e6; S = E / B
    assert work.fewest_samples == pytest.approx(2e6)
    assert work.fewest_steps == pytest.approx(2000)
    assert work.samples_at(2000, 1000) == pytest.approx(6e6)
    assert to_target(target, 500, None).samples_at(2000, None) == 3e6
    assert to_target(target, None, (1000, 1000, 1000)).fewest_samples == 3e6


@pytest.mark.parametrize("batch", [1536, 8 * 1536])
def test_a_doubtful_critical_batch_matters_only_at_other_batches_than_the_curve_s(batch):
    """(1 + b/B) / (1 + b_curve/B), with B from 500 to 5000: 1 at the curve's own, and wide far from it."""
    work = to_target(reached(1e7, 1e7, 1e7), 1536, (1000, 500, 5000))
    choice = plan(Ranged(PERFECT, {}), SYSTEM, work, [batch // 1536]).choices[0]
    edges = [(1 + batch / critical) / (1 + 1536 / critical) for critical in (5000, 1000, 500)]
    assert choice.samples == pytest.approx(1e7 * edges[1])
    assert choice.low_hours / choice.hours == pytest.approx(edges[0] / edges[1], rel=0.05)
    assert choice.high_hours / choice.hours == pytest.approx(edges[2] / edges[1], rel=0.05)


def test_doubtful_samples_make_the_hours_doubtful():
    found = plan(Ranged(PERFECT, {}), SYSTEM, Work(samples=1e9, samples_range=(5e8, 2e9)), [1]).choices[0]
    assert found.low_hours / found.hours == pytest.approx(0.5, rel=0.2)
    assert found.high_hours / found.hours == pytest.approx(2, rel=0.2)


def test_samples_of_which_only_the_least_is_known_are_planned_with_an_upper_end_that_says_so():
    """A target close above the floor of the curve."""
    found = plan(Ranged(PERFECT, {}), SYSTEM, Work(samples=1e9, samples_range=(5e8, 1e33)), [1]).choices[0]
    assert 0 < found.hours < 1e9
    assert found.high_hours > 1e15


def test_steps_follow_the_critical_batch():
    batch = 6 * 256
    choice = plan(Ranged(PERFECT, {}), SYSTEM, Work(samples=1e9, critical_batch=(batch, batch, batch)), [1]).choices[0]
    assert choice.samples == pytest.approx(2e9)
    assert choice.steps == pytest.approx(2e9 / batch)


def test_in_time_is_the_cheapest_that_ends_then_and_not_the_best_value():
    critical = (8 * 6 * 256,) * 3
    work = Work(samples=1e9, critical_batch=critical)
    free = plan(Ranged(PERFECT, {}), SYSTEM, work, [1, 2, 4, 8, 16])
    hours = {choice.nodes: choice.hours for choice in free.choices}
    found = plan(Ranged(PERFECT, {}), SYSTEM, work, [1, 2, 4, 8, 16], deadline=Deadline(hours=hours[4] * 1.01))
    assert found.within is not None
    assert found.recommended.nodes == found.within.nodes == 4
    assert free.recommended.nodes == 8
    never = plan(Ranged(PERFECT, {}), SYSTEM, work, [1, 2], deadline=Deadline(hours=hours[16]))
    assert never.within is None
    assert any("No number of nodes ends within" in note for note in never.notes)


def test_money_is_node_hours_times_devices_times_price():
    prices = Prices(date="2026-11-01", currency="EUR", per_hour={"v100 sxm2": 2.0}, watts={})
    found = plan(Ranged(PERFECT, {}), SYSTEM, Work(samples=1e9), [4], prices=prices)
    assert found.choices[0].cost == pytest.approx(found.choices[0].node_hours * 6 * 2)
    by_table = plan(Ranged(PERFECT, {}), SYSTEM, Work(samples=1e9), [4], prices=replace(prices, per_hour={"v100": 2.0}))
    assert by_table.choices[0].cost == found.choices[0].cost
    with pytest.raises(TopoutError, match="do not name"):
        plan(Ranged(PERFECT, {}), SYSTEM, Work(samples=1e9), [4], prices=replace(prices, per_hour={"h100": 2.0}))


@pytest.mark.parametrize(
    ("run_batch", "critical", "words"),
    [
        (1536, None, "4.0 times the 1,536 of the run"),
        (3072, None, None),
        (6144, (6000.0, 6000.0, 6000.0), "beyond the critical one (6,000)"),
        (None, None, "is not known here"),
    ],
)
def test_tuning_again_is_asked_for_when_the_batch_is_another(run_batch, critical, words):
    found = plan(Ranged(PERFECT, {}), SYSTEM, Work(samples=1e9, critical_batch=critical), [4], run_batch=run_batch)
    said = [note for note in found.notes if "tuned again" in note]
    assert len(said) == (words is not None)
    assert words is None or words in said[0]


def run_with_noise(path, high=3_000_000):
    columns = {"step": 10, "thousandths": 2_000_000, "low_thousandths": 1_500_000,
               "high_thousandths": high, "drifted": 0, "num_samples": 50, "batch": 128}  # fmt: skip
    counters = {f"noise_scale_{name}": [(10, number)] for name, number in columns.items()}
    steps = [[StepPlan(input=100, forward=1000, backward=2000, optimizer=100, samples=64) for _ in range(20)]] * 2
    build_run(path, steps, Plan(counters=counters))
    assert call(["calibrate", str(path)]) == 0


def test_a_run_lends_its_noise_scale_batch_and_losses(tmp_path, capsys):
    run_with_noise(tmp_path / "run")
    # 128 samples a step, so that the loss is 0.5 + 10 / sqrt(samples)
    rows = [f"{step},{0.5 + 10 * (128 * step) ** -0.5}" for step in range(1, 400)]
    (tmp_path / "run" / "losses.csv").write_text("\n".join(["step,loss", *rows]))
    asked = ["plan", str(tmp_path / "run"), "--system", "summit", "--nodes", "1,2", "--target-loss", "0.54", "--json"]
    capsys.readouterr()
    assert call(asked) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["critical_batch"]["value"] == 2000
    assert found["critical_batch"]["high"] == 10_000
    assert "from the run's noise scale" in captured.err
    # (10 / 0.04)^2 samples at batch 128, and what is left of that at a tiny one
    samples = 62_500 / (1 + 128 / 2000) * (1 + found["choices"][0]["batch"] / 2000)
    assert found["choices"][0]["samples"] == pytest.approx(samples, rel=0.02)


@pytest.mark.parametrize("words", [["--samples", "1e6"], ["--target-loss", "0.6"]])
def test_a_noise_scale_without_upper_limit_is_no_critical_batch_and_that_is_said(tmp_path, words, capsys):
    run_with_noise(tmp_path / "run", high=NOT_GIVEN)
    rows = [f"{128 * step},{0.5 + 10 * (128 * step) ** -0.5}" for step in range(1, 400)]
    (tmp_path / "run" / "losses.csv").write_text("\n".join(["samples,loss", *rows]))
    asked = ["plan", str(tmp_path / "run"), "--system", "summit", "--nodes", "1", "--json", *words]
    capsys.readouterr()
    assert call(asked) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["critical_batch"] is None
    assert "only known to lie above 1,500, without upper limit from 50 steps" in captured.err
    assert "The critical batch is not known" in captured.err
    assert call([*asked, "--critical-batch", "2000"]) == 0
    assert "only known to lie above" not in capsys.readouterr().err


def test_a_probe_in_the_run_folder_goes_before_its_noise_scale(tmp_path, capsys):
    run_with_noise(tmp_path / "run")
    (tmp_path / "run" / "critical_batch.json").write_text('{"value": 9000, "low": 8000, "high": 11000}')
    capsys.readouterr()
    assert (
        call(["plan", str(tmp_path / "run"), "--system", "summit", "--nodes", "1", "--samples", "1e6", "--json"]) == 0
    )
    captured = capsys.readouterr()
    assert json.loads(captured.out)["critical_batch"]["value"] == 9000
    assert "from the probe in" in captured.err


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{"version": 1, "job": {}}', "One has value, low and high."),
        ("[1]", "One has value, low and high."),
        ('{"value": 1e300, "low": 1, "high": null}', "value, low and high are 1e+300, 1, None."),
        (f'{{"value": 10, "low": 1, "high": 1{400 * "0"}}}', f"value, low and high are 10, 1, 1{400 * '0'}."),
    ],
)
def test_a_file_that_is_no_probe_is_said_to_be_none(tmp_path, content, why):
    path = tmp_path / "calibration.json"
    path.write_text(content)
    with pytest.raises(TopoutError, match=r"calibration\.json holds no probe") as caught:
        given(str(path))
    # not to be written over the file that was named
    assert (caught.value.why, "open('critical_batch.json', 'w')" in caught.value.do) == (why, True)


def test_steps_without_number_are_refused():
    with pytest.raises(TopoutError, match="How many steps"):
        Work(samples=1e300, critical_batch=(1e12, 1e12, 1e12)).steps_at(64, 1e12)


def test_ranges_of_90_per_cent_are_planned_with_as_those_of_80(tmp_path):
    """A probe and a noise scale say 90 %: 1.645 standard deviations, of which 1.282 make 80 %, in logarithms."""
    probe = tmp_path / "probe.json"
    probe.write_text('{"value": 1000, "low": 100, "high": 2000}')
    assert from_probe(probe).ranged == pytest.approx((1000, 1000 * 0.1**0.7791, 1000 * 2**0.7791), rel=1e-3)
    # no upper limit: five times, as for a noise scale
    probe.write_text('{"value": 1000, "low": 500, "high": null}')
    assert from_probe(probe).high == 5000
    noise = NoiseScale(value=1000, low=100, high=20_000, has_drifted=False, num_samples=50, batch_size=128)
    assert from_noise_scale(noise).ranged == pytest.approx((1000, 1000 * 0.1**0.7791, 1000 * 20**0.7791), rel=1e-3)
    assert given("1000:100:2000").ranged == (1000, 100, 2000)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--epochs", "3"], "neither a number of samples nor a target"),
        (["--target-loss", "0.5"], "No losses"),
        (["--samples", "1e6", "--critical-batch", "-5"], "no critical batch"),
        (["--samples", "1e6", "--critical-batch", "1e308"], "from 1e-06 to 1e+18"),
        (["--samples", "1e6", "--critical-batch", "1:1e-300:1"], "from 1e-06 to 1e+18"),
        (["--samples", "1e300"], "cannot be computed"),
        (["--samples", "1e6", "--what-if", "compute.forward_s=1e308"], "cannot be computed"),
        (
            (
                "--samples 1e6 --what-if evaluation.samples=9 --what-if evaluation.samples_per_s=9 "
                "--what-if evaluation.every_samples=1e-320"
            ).split(),
            "cannot be computed",
        ),
        (["--samples", "1e6", "--critical-batch", "nothing.json"], "holds no probe"),
        (["--samples", "1e6", "--nodes", "5000"], "more than Summit"),
        (["--samples", "1e6", "--within", "soon"], "is not a time"),
        (["--samples", "1e6", "--certainty", "90"], "no certainty"),
        (["--samples", "1e6", "--what-if", "between.bytes_per_s=-1"], "above 0"),
        (["--samples", "1e6", "--what-if", "shared_storage.bytes_per_s=-1"], "not negative"),
        (["--samples", "1e6", "--what-if", "betwen.bytes_per_s=1"], "is not known"),
        (["--samples", "nan"], "--samples nan is no amount"),
        (["--samples", "inf"], "--samples inf is no amount"),
        (["--samples=-1", "--epochs=-1"], "--samples -1 is no amount"),
        (["--samples", "1e6", "--epochs", "nan"], "--epochs nan is no amount"),
        (["--samples", "1e6", "--epochs", "0"], "--epochs 0 is no amount"),
        (["--samples", "1e300", "--epochs", "1e300"], "nothing to train"),
        (["--samples", "1e6", "--losses", "any.csv"], "--losses any.csv is for another target"),
        (["--target-loss", "0.5", "--samples", "1e6"], "--samples 1000000.0 is for another target"),
        (["--target-loss", "nan", "--losses", "any.csv"], "--target-loss nan is no loss"),
        (["--target-loss", "inf", "--losses", "any.csv"], "--target-loss inf is no loss"),
        (["--target-loss", "0.5", "--losses", "any.csv", "--curve-batch", "0"], "--curve-batch 0 is no batch"),
        (["--samples", "1e6", "--max-nodes", "0"], "--max-nodes 0 are none"),
        (["--samples", "1e6", "--nodes", "1..8", "--max-nodes", "2"], "--nodes 1..8 and --max-nodes 2 exclude"),
        (["--target-loss", "0.5", "--losses", "any.csv", "--epochs", "90"], "--epochs 90.0 is for another target"),
        (["--samples", "1e6", "--certainty", "0.99"], "--certainty 0.99 stands alone"),
        (["--samples", "1e6", "--mesh", "train.py"], "Its name does not end in .toml"),
    ],
)
def test_a_plan_refuses_what_it_cannot_use(words, said, capsys):
    assert call(["plan", "resnet50-v100", "--system", "summit", *words]) == 2
    assert said in capsys.readouterr().err


def test_far_beyond_the_calibrated_nodes_a_plan_warns(capsys):
    assert call(["plan", "resnet50-1080ti", "--system", "summit", "--samples", "1e6", "--nodes", "1,128"]) == 0
    assert "8 times the 16" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verb", "do"),
    [
        (["plan", "--samples", "1e9"], "Calibrate a run on H100 SXM for those there."),
        (["simulate", "--steps", "5"], "--device 'H100'"),
    ],
)
def test_a_job_of_another_device_than_the_systems_is_told(verb, do, capsys):
    words = [verb[0], "resnet50-v100", "--nodes", "1", *verb[1:]]
    assert call([*words, "--system", "h100-pod"]) == 0
    said = capsys.readouterr().err
    assert "measured on V100 SXM2" in said and "has H100 SXM" in said and do in said
    assert call([*words, "--system", "summit"]) == 0
    assert "measured on" not in capsys.readouterr().err


def test_without_ranges_the_interval_is_not_known_and_that_is_said(tmp_path, capsys):
    job = tmp_path / "job.toml"
    job.write_text(
        "title='a'\n[compute]\nforward_s=1\nbackward_s=2\n[gradients]\nbytes=0\ntensors=1\n[input]\nsamples=8\n"
    )
    system = tmp_path / "system.toml"
    system.write_text("title='b'\nnodes=4\nranks_per_node=1\n[inside]\nlatency_s=1e-6\nbytes_per_s=1e9\n"
                      "[between]\nlatency_s=1e-6\nbytes_per_s=1e9\n")  # fmt: skip
    for words in (["plan", str(job), "--samples", "1e6"], ["simulate", str(job), "--nodes", "1,4"]):
        assert call([*words, "--system", str(system)]) == 0
        captured = capsys.readouterr()
        assert "not known" in captured.out
        assert "there is no interval" in captured.err


def test_a_mesh_is_written_once(tmp_path, capsys):
    asked = ["plan", "resnet50-v100", "--system", "summit", "--samples", "1e9", "--critical-batch", "1000",
             "--nodes", "64", "--mesh", str(tmp_path / "mesh.toml")]  # fmt: skip
    assert call(asked) == 0
    assert "The batch can grow no further" in capsys.readouterr().out
    assert "[mesh]" in (tmp_path / "mesh.toml").read_text()
    assert call(asked) == 2
    assert "is there already" in capsys.readouterr().err
