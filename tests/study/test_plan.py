"""Which number of nodes a plan recommends, where the answer can be worked out by hand."""

import json
from dataclasses import replace

import pytest

from topout.cli.main import call
from topout.schema.errors import TopoutError
from topout.study.description import Ranged, put, read_job, read_system
from topout.study.plan import Work, plan

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


def test_a_plan_says_what_it_does_not_know():
    found = plan(Ranged(PERFECT, {}), SYSTEM, Work(samples=1e9), [1, 2])
    assert any("critical batch is not known" in note for note in found.notes)
    assert any("tuned again" in note for note in found.notes)


def test_nothing_to_train_is_an_error():
    with pytest.raises(TopoutError, match="nothing to train"):
        plan(Ranged(PERFECT, {}), SYSTEM, Work(samples=0), [1])


def test_plan_writes_the_request(capsys):
    words = ["--samples", "1.28e6", "--epochs", "90", "--critical-batch", "12000:9000:16000", "--max-nodes", "64"]
    assert call(["plan", "resnet50-v100", "--system", "summit", *words]) == 0
    text = capsys.readouterr().out
    assert "topout submit --nodes 8" in text
    assert call(["plan", "resnet50-v100", "--system", "summit", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["best_value"]["nodes"] == 8


@pytest.mark.parametrize("text", ["x", "0", "3:2:1", "1:2"])
def test_a_critical_batch_is_a_number_with_or_without_its_range(text, capsys):
    assert call(["plan", "resnet50-v100", "--system", "summit", "--samples", "1e6", "--critical-batch", text]) == 2
    assert "no critical batch" in capsys.readouterr().err
