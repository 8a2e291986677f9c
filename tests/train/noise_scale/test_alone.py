"""One rank: micro-batches are the second gradient, and without them it says what is missing."""

import pytest
import torch
from torch import nn

from topout.schema.errors import TopoutError
from topout.train.noise_scale import NoiseScale
from topout.train.place import alone


class Weight(nn.Module):
    """One number; the gradient of its loss is the mean of the samples, whatever the weight."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, dtype=dtype))

    def forward(self, samples):
        return (self.weight * samples).mean()


def watched(model, **options):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return optimizer, NoiseScale(model, optimizer, alone(), **{"batch_size": 2, "accumulate": 2, "every": 1, **options})


def step(model, optimizer, *batches, factor=1.0):
    optimizer.zero_grad()
    for batch in batches:
        (factor * model(torch.tensor(batch)) / len(batches)).backward()
    optimizer.step()


def test_two_micro_batches_make_a_sample_that_can_be_worked_out_by_hand():
    model = Weight()
    optimizer, noise = watched(model)
    step(model, optimizer, [2.0, 4.0], [4.0, 6.0])
    # gradients 3 and 5: mean square 17, square of the mean 16
    assert noise.state_dict()["samples"] == [[0, 17.0, 16.0, 2, 4]]


def test_samples_become_an_estimate_and_survive_a_checkpoint():
    model = Weight()
    optimizer, noise = watched(model)
    for number in range(8):
        assert noise.value is None
        step(model, optimizer, [2.0, 4.0 + number % 2], [4.0, 6.0])
    assert noise.value.num_samples == 8
    assert noise.value.low <= noise.value.value <= noise.value.high
    _, other = watched(Weight())
    other.load_state_dict(noise.state_dict())
    assert other.value == noise.value and other.step == 8


def test_the_window_forgets_what_is_older():
    model = Weight()
    optimizer, noise = watched(model, window=8)
    for number in range(12):
        step(model, optimizer, [1.0, 1.0], [3.0, float(number)])
    assert [row[0] for row in noise.state_dict()["samples"]] == list(range(4, 12))


def test_a_scale_that_grows_leaves_the_stored_norms_alone():
    model = Weight()
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1)
    optimizer, noise = watched(model, scaler=scaler)
    for _ in range(3):
        optimizer.zero_grad()
        for batch in ([2.0, 4.0], [4.0, 6.0]):
            scaler.scale(model(torch.tensor(batch)) / 2).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 2048.0
    assert [row[1:3] for row in noise.state_dict()["samples"]] == [[17.0, 16.0]] * 3


def test_a_step_that_overflowed_is_left_out():
    model = Weight()
    optimizer, noise = watched(model)
    step(model, optimizer, [2.0, 4.0], [4.0, 6.0], factor=float("inf"))
    assert noise.state_dict()["samples"] == []
    assert noise.missing == "its gradients were not finite."


def test_parameters_of_other_kinds_count():
    table = nn.Embedding(5, 2, sparse=True)
    mixed = nn.ModuleDict({"table": table, "small": Weight(torch.bfloat16), "frozen": Weight()})
    mixed["frozen"].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(mixed.parameters(), 0.1)
    noise = NoiseScale(mixed, optimizer, alone(), batch_size=1, accumulate=2, every=1)
    optimizer.zero_grad()
    for part in (1.0, 3.0):
        # the same row twice: a sparse gradient with an index that repeats, part in each of 2 columns
        looked_up = table(torch.tensor([4, 4])).sum() * part / 2
        (looked_up + mixed["small"](torch.tensor([part], dtype=torch.bfloat16)).float() / 2).backward()
    optimizer.step()
    # of each micro-batch |2 * gradient|^2 = 2 * (2 part)^2 + part^2 = 9 part^2: 9 and 81; their mean is of part 2
    assert noise.state_dict()["samples"] == [[0, 45.0, 9 * 2.0**2, 1, 2]]


def test_one_rank_without_accumulation_hears_what_is_missing():
    with pytest.raises(TopoutError, match="one gradient a step") as raised:
        watched(Weight(), accumulate=None)
    assert "second rank" in raised.value.do and "accumulate=2" in raised.value.do


@pytest.mark.parametrize(
    "options", [{"every": 0}, {"window": 3}, {"batch_size": None}, {"batch_size": 0}, {"accumulate": 0}]
)
def test_what_cannot_be_is_refused(options):
    with pytest.raises(TopoutError):
        watched(Weight(), **options)


def test_the_batch_size_comes_from_the_loader():
    loader = torch.utils.data.DataLoader(list(range(8)), batch_size=4)
    _, noise = watched(Weight(), batch_size=None, loader=loader)
    assert noise.batch_size == 4


def test_recomputed_activations_do_not_count_twice():
    from torch.utils.checkpoint import checkpoint

    for reentrant in (True, False):
        model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        noise = NoiseScale(model, optimizer, alone(), batch_size=2, accumulate=2, every=1)
        inputs = torch.randn(2, 2, 3, requires_grad=True)
        parts = []
        for part in inputs:
            hidden = checkpoint(model[0], part, use_reentrant=reentrant)
            loss = model[2](checkpoint(model[1], hidden, use_reentrant=reentrant))
            before = [0 if p.grad is None else p.grad.clone() for p in model.parameters()]
            (loss.mean() / 2).backward()
            added = [p.grad - old for p, old in zip(model.parameters(), before, strict=True)]
            parts.append(sum(float(gradient.square().sum()) for gradient in added))
        big = sum(float(p.grad.square().sum()) for p in model.parameters())
        optimizer.step()
        ((_, small, found_big, *_),) = noise.state_dict()["samples"]
        assert small == pytest.approx(2 * sum(parts), rel=1e-5)
        assert found_big == pytest.approx(big, rel=1e-5)
