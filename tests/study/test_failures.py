"""Trainings with failures: drawn ones agree with the closed form, and arithmetic by hand with both."""

from dataclasses import replace

import pytest

from topout.cli.main import call
from topout.schema.errors import TopoutError
from topout.study.description import read_job, read_system
from topout.study.failures import Stretch, age, best_interval_s
from topout.study.job import Checkpoint, Failures
from topout.study.step_model import expected_step

SUMMIT = read_system("summit").value
PLAIN = read_job("resnet50-v100").value
# 4,608 nodes of 46,080 hours fail every ten hours; a checkpoint takes 50 s
JOB = replace(
    PLAIN,
    checkpoint=Checkpoint(bytes=50e9, bytes_per_s=1e9, every_steps=4000),
    failures=Failures(node_hours=46_080, restart_s=600),
)
MONTH_S = 30 * 86400.0


def aged(job, nodes=4608, undisturbed_s=MONTH_S, **options):
    return age(job, expected_step(job, SUMMIT, nodes), nodes, undisturbed_s, **options)


def test_drawn_and_expected_hours_agree():
    found = aged(JOB)
    assert found.undisturbed_hours == 720
    assert found.hours == pytest.approx(found.expected_hours, rel=0.005)
    assert found.low_hours < found.hours < found.high_hours


def test_a_failure_costs_a_restart_and_half_an_interval():
    found = aged(JOB)
    step = expected_step(JOB, SUMMIT, 4608)
    interval_s = 4000 * (step.seconds - step.parts["failures"])
    assert found.interval_s == pytest.approx(interval_s)
    # one in ten hours: some 73 of them
    lost_hours = found.failures * (600 + interval_s / 2) / 3600
    assert found.failures == pytest.approx(found.expected_hours / 10, rel=0.03)
    assert found.expected_hours - 720 == pytest.approx(lost_hours, rel=0.03)


def test_saves_of_epochs_come_in_as_many_steps_as_an_epoch_has():
    batch = 4608 * 6 * PLAIN.input.samples
    of_epochs = replace(JOB, checkpoint=replace(JOB.checkpoint, every_steps=0, every_samples=4000 * batch))
    assert aged(of_epochs).interval_s == pytest.approx(aged(JOB).interval_s)
    assert aged(of_epochs).best_hours == pytest.approx(aged(JOB).best_hours)


def test_without_failures_worth_naming_nothing_is_lost():
    found = aged(replace(JOB, failures=Failures(node_hours=1e12, restart_s=600)))
    assert found.hours == pytest.approx(720, rel=1e-3)
    assert found.expected_hours == pytest.approx(720, rel=1e-3)


@pytest.mark.parametrize("intervals", [0.4, 1.4, 1.6, 2.5])
def test_a_training_is_not_rounded_to_whole_intervals(intervals):
    rare = replace(JOB, failures=Failures(node_hours=1e12, restart_s=600))
    interval_s = aged(rare).interval_s
    found = aged(rare, undisturbed_s=intervals * interval_s)
    assert found.hours == pytest.approx(intervals * interval_s / 3600, rel=1e-6)
    assert found.expected_hours == pytest.approx(intervals * interval_s / 3600, rel=1e-6)


def test_the_shorter_last_stretch_fails_less():
    # a failure every ten hours; two and a half stretches of some half an hour, by Daly's mean of each
    whole = aged(JOB, undisturbed_s=3e5)
    found = aged(JOB, undisturbed_s=2.5 * whole.interval_s, draws=20_000)
    each = [Stretch(seconds=part * whole.interval_s, restart_s=600, rate=1 / 36_000).expected_s for part in (1, 0.5)]
    assert found.expected_hours == pytest.approx((2 * each[0] + each[1]) / 3600)
    assert found.failures == pytest.approx(found.expected_hours / 10, rel=0.05)


def test_the_best_interval_is_youngs_and_no_other_is_better():
    rate = 1 / 36_000
    # sqrt(2 x 50 s x 36,000 s) - 50 s
    assert best_interval_s(rate, 50, 50) == pytest.approx(1897.4 - 50, abs=0.1)

    def mean(work_s):
        return Stretch(seconds=work_s + 50, restart_s=600, rate=rate).expected_s / work_s

    assert mean(1847) < min(mean(1200), mean(2800))
    found = aged(JOB)
    assert found.best_interval_s == pytest.approx(1847.4, abs=0.1)
    assert found.best_hours is not None
    assert found.best_hours <= found.expected_hours * 1.001


def test_a_checkpoint_beside_training_may_follow_its_predecessor_at_once():
    beside = replace(JOB, checkpoint=replace(JOB.checkpoint, is_blocking=False))
    assert aged(beside).best_interval_s == 50


def test_longer_stretches_between_checkpoints_spread_the_end():
    rare = replace(JOB, checkpoint=replace(JOB.checkpoint, every_steps=40_000))
    wide, narrow = aged(rare), aged(JOB)
    assert wide.high_hours - wide.low_hours > 2 * (narrow.high_hours - narrow.low_hours)
    assert wide.hours == pytest.approx(wide.expected_hours, rel=0.02)


def test_the_same_seed_gives_the_same_training():
    assert aged(JOB, seed=3) == aged(JOB, seed=3)
    assert aged(JOB, seed=3).hours != aged(JOB, seed=4).hours


def test_a_training_that_cannot_end_is_an_error():
    never = replace(JOB, checkpoint=Checkpoint())
    with pytest.raises(TopoutError, match="does not end"):
        aged(never)


def test_nodes_that_never_fail_cannot_be_sampled():
    with pytest.raises(TopoutError, match=r"failures\.node_hours"):
        aged(PLAIN)


def test_what_the_refusal_says_to_do_is_enough(capsys):
    words = ["simulate", "resnet50-v100", "--system", "summit", "--nodes", "4608", "--steps", "5", "--failures", "30d"]
    assert call(words) == 2
    advice = capsys.readouterr().err.partition("  do   ")[2]
    assert call([*words, *advice.split()]) == 0
    assert "A training of 30.0 d without failures" in capsys.readouterr().out
