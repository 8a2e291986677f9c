"""One statement gives the rate, the warm-up and the decay; statements that cannot be are refused."""

import pytest
import torch

from topout.api.large_batch import BatchRule, Schedule, large_batch, large_batch_from
from topout.schema.errors import TopoutError
from topout.train.optim.lars import LARS

STATED = {"batch": 4096, "base": (64, 0.1), "samples": 20480, "epochs": 5, "warmup_epochs": 1.5}


@pytest.mark.parametrize(("rule", "rate"), [("linear", 6.4), ("sqrt", 0.8), ("none", 0.1)])
def test_the_rate_follows_the_batch_by_its_rule(rule, rate):
    assert BatchRule(batch=4096, rule=rule, base=(64, 0.1)).rate == pytest.approx(rate)


@pytest.mark.parametrize(
    ("decay", "shares"),
    [
        ("cosine", [0.5, 1, 1, 0.853553, 0.5, 0.146447, 0]),
        ("poly", [0.5, 1, 1, 0.5625, 0.25, 0.0625, 0]),
        ("constant", [0.5, 1, 1, 1, 1, 1, 1]),
    ],
)
def test_the_rate_warms_up_and_decays(decay, shares):
    course = Schedule(steps=6, warmup_steps=2, decay=decay)
    assert [course.share(step) for step in range(7)] == pytest.approx(shares, abs=1e-6)
    assert course.share(99) == pytest.approx(shares[-1])


def test_the_rate_falls_at_milestones():
    course = Schedule(steps=10, decay="step", milestones=(3, 6))
    assert [course.share(step) for step in (0, 2, 3, 5, 6, 9)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


def test_one_statement_makes_optimizer_and_schedule():
    plan = large_batch(**STATED, trust=0.02, weight_decay=5e-4)
    model = torch.nn.Linear(2, 2)
    optimizer = plan.optimizer(model.named_parameters())
    schedule = plan.schedule(optimizer)
    assert isinstance(optimizer, LARS) and isinstance(schedule, torch.optim.lr_scheduler.LRScheduler)
    group = optimizer.param_groups[0]
    assert (group["trust"], group["weight_decay"], group["param_names"]) == (0.02, 5e-4, ["weight", "bias"])
    rates = []
    for _ in range(8):
        rates.append(group["lr"])
        optimizer.step()
        schedule.step()
    # 5 steps an epoch: 7 of warm-up in 25
    assert rates == pytest.approx([0.8 * share for share in [1 / 7, 2 / 7, 3 / 7, 4 / 7, 5 / 7, 6 / 7, 1, 1]])
    assert "rate 0.8 (sqrt rule from 0.1 at 64), 7 steps of warm-up in 25 (5 an epoch), cosine" in str(plan)


@pytest.mark.parametrize(
    ("drop_last", "steps", "said"),
    [
        (False, 12, "1 steps of warm-up in 12 (4 an epoch, the last of 10 samples)"),
        (True, 9, "1 steps of warm-up in 9 (3 an epoch, 10 samples left out)"),
    ],
)
def test_the_last_step_of_the_loader_is_the_last_of_the_schedule(drop_last, steps, said):
    loader = torch.utils.data.DataLoader(range(100), batch_size=30, drop_last=drop_last)
    plan = large_batch(batch=30, base=(30, 0.1), samples=100, epochs=3, warmup_epochs=0.4, drop_last=drop_last)
    optimizer = plan.optimizer(torch.nn.Linear(2, 2).parameters())
    schedule = plan.schedule(optimizer)
    rates = []
    for _ in range(3):
        for _ in loader:
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
    assert len(rates) == steps
    assert min(rates) > 0
    assert optimizer.param_groups[0]["lr"] == 0
    assert said in str(plan)


def test_milestones_are_epochs_of_the_loader():
    plan = large_batch(**{**STATED, "samples": 20_481, "warmup_epochs": 0}, decay="step", milestones=(2, 4))
    assert (plan.course.steps, plan.course.milestones) == (30, (12, 24))


STEPS = 'base_rate = 0.1\nsamples = 20480\nepochs = 5\ndecay = "step"\n'


def test_a_toml_table_says_the_same(tmp_path):
    file = tmp_path / "train.toml"
    file.write_text(
        '[mesh]\ndp = 4\n[batch]\noptimizer = "lamb"\nbatch = 4096\nrule = "linear"\nbase_batch = 64\nbase_rate = 0.1\n'
        'samples = 20481\nepochs = 5\ndrop_last = true\nwarmup_epochs = 1.5\ndecay = "poly"\nweight_decay = 0.01\n'
    )
    assert large_batch_from(file) == large_batch(
        **{**STATED, "samples": 20481}, drop_last=True, optimizer="lamb", rule="linear", decay="poly", weight_decay=0.01
    )
    file.write_text("[batch]\nbatch = 64\nbase_bach = 64\n")
    with pytest.raises(TopoutError, match=r"train.toml:3: unknown key 'base_bach'") as refused:
        large_batch_from(file)
    assert "did you mean 'base_batch'?" in str(refused.value.do)
    file.write_text(file.read_text().replace("base_bach", "base_batch") + STEPS)
    with pytest.raises(TopoutError, match="a file cannot say when its steps are") as refused:
        large_batch_from(file)
    assert 'large_batch(decay="step", milestones=' in str(refused.value.do)
    file.write_text("[bacth]\nbatch = 64\n")
    with pytest.raises(TopoutError, match="has no batch, base_batch"):
        large_batch_from(file)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rule": "sqrtt"}, "There is no rule 'sqrtt'"),
        ({"optimizer": "larz"}, "There is no optimizer 'larz'"),
        ({"decay": "cosin"}, "There is no decay 'cosin'"),
        ({"base": (0, 0.1)}, "base batch cannot be 0"),
        ({"base": 64}, "base cannot be 64"),
        ({"base": (64, float("inf"))}, "base rate cannot be inf"),
        ({"batch": 0}, "batch cannot be 0"),
        ({"batch": 30_000}, "larger than the data set of 20480"),
        ({"warmup_epochs": 5}, "warm-up takes 25 steps, and training has 25"),
        ({"warmup_epochs": -1}, "warm-up cannot be -1"),
        ({"epochs": 0}, "number of steps cannot be 0"),
        ({"decay": "step"}, "milestones cannot be"),
        ({"decay": "poly", "power": 0}, "power cannot be 0"),
        ({"optimizer": "lamb", "trust": 0.02}, "no option of lamb 'trust'"),
        ({"optimizer": "adamw", "momentum": 0.9}, "no option of adamw 'momentum'"),
        ({"wieght_decay": 1e-4}, "no option of lars 'wieght_decay'"),
        ({"lr": 0.1}, "no option of lars 'lr'"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_stated(change, said):
    with pytest.raises(TopoutError, match=said):
        large_batch(**{**STATED, **change})


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        ("lars", {"trust": 0.02}),
        ("lamb", {"betas": (0.9, 0.99)}),
        ("sgd", {"nesterov": True}),
        ("adamw", {"eps": 1e-6}),
    ],
)
def test_options_reach_the_optimizer(optimizer, options):
    made = large_batch(**STATED, optimizer=optimizer, **options).optimizer(torch.nn.Linear(2, 2).parameters())
    assert {name: made.param_groups[0][name] for name in options} == options


def test_the_nearest_name_is_offered():
    with pytest.raises(TopoutError) as refused:
        BatchRule(batch=64, rule="sqrtt", base=(64, 0.1))
    assert refused.value.do == "did you mean 'sqrt'?"
