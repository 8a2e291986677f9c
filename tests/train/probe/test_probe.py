"""Short probes find a critical batch that can be computed, and leave everything as it was."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

from topout.schema.errors import TopoutError
from topout.train.probe import probe_batch
from topout.train.probe.branch import crossing, smoothed
from topout.train.probe.fit import fit
from topout.train.probe.samples import FIXED, Samples
from topout.train.probe.search import enclosed

SIZES = (4, 16, 64, 256)
DIMENSIONS = 100
CURVATURE = torch.logspace(-1.3, 0, DIMENSIONS)


@pytest.fixture(autouse=True)
def one_thread():
    """Threads that wait for each other make tiny steps many times slower where cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Point(nn.Module):
    def __init__(self):
        super().__init__()
        self.place = nn.Parameter(torch.ones(DIMENSIONS))


def distance(model, batch):
    """A bowl about the samples' mean: gradients of single samples scatter by their own scatter."""
    return 0.5 * (CURVATURE * (model.place - batch) ** 2).sum(1).mean()


def plain_sgd(parameters):
    return torch.optim.SGD(parameters, 0.1)


def scattered(num=20_000):
    return torch.randn(num, DIMENSIONS, generator=torch.Generator().manual_seed(0))


def expected_steps(size, target):
    """Exactly, over a fine grid of rates: E x^2 <- (1 - rate h)^2 E x^2 + (rate h)^2 / size in each coordinate."""
    curvature = CURVATURE.double().numpy()
    fewest = np.inf
    for rate in np.geomspace(0.02, 1.9, 100):
        squares = np.ones(DIMENSIONS)
        before = 0.5 * (curvature * squares).sum()
        for step in range(1, 400):
            squares = (1 - rate * curvature) ** 2 * squares + (rate * curvature) ** 2 / size
            after = 0.5 * (curvature * squares).sum()
            if after <= target:
                fewest = min(fewest, step - 1 + (before - target) / (before - after))
                break
            before = after
    return fewest


def test_a_critical_batch_that_can_be_computed_is_found_within_half_of_it():
    data = scattered()
    found = probe_batch(Point(), distance, data, batches=SIZES, optimizer=plain_sgd, steps=120, chunk=4096)
    judged_by = data[torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:FIXED]]
    lowest = float(0.5 * (CURVATURE * (judged_by - judged_by.mean(0)) ** 2).sum(1).mean())
    target = found.target_loss - lowest
    exact = fit({size: [expected_steps(size, target)] for size in SIZES}).critical
    assert exact / 1.5 <= found.value <= exact * 1.5
    assert found.low <= found.value <= found.high
    assert list(found.steps_at) == list(SIZES)
    # larger batches bear larger rates, and were given them
    assert found.rate_factor_at[256] > found.rate_factor_at[4]


def classifier():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))


def cross_entropy(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def labelled(num=600):
    chance = torch.Generator().manual_seed(1)
    inputs = torch.randn(num, 6, generator=chance)
    return inputs, inputs[:, :3].argmax(1)


def test_model_optimizer_and_random_numbers_stay_as_they_were():
    model = classifier()
    model.eval()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    cross_entropy(model, labelled(64)).backward()
    optimizer.step()
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    chances = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    found = probe_batch(
        model, cross_entropy, labelled(), batches=(8, 32, 128), optimizer=optimizer, steps=20, repeats=1
    )
    assert found.target_loss > 0
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert not model.training
    after = optimizer.state_dict()
    assert after["param_groups"] == state["param_groups"]
    momenta = [each["momentum_buffer"] for each in state["state"].values()]
    assert all(
        torch.equal(each["momentum_buffer"], before)
        for each, before in zip(after["state"].values(), momenta, strict=True)
    )
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
    assert torch.equal(torch.get_rng_state(), chances[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == chances[1:]
    assert schedule.last_epoch == 0


def test_two_probes_are_the_same_and_a_data_set_gives_what_tensors_give():
    options = {"batches": (8, 32, 128), "steps": 20, "repeats": 1}
    tensors = labelled()
    pairs = list(zip(*tensors, strict=True))
    first, second = (probe_batch(classifier, cross_entropy, data, **options) for data in (tensors, pairs))
    assert first.steps_at == second.steps_at and first.value == second.value


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batches": (8, 32)}, "three sizes"),
        ({"batches": (8, 32, 0)}, "0 is no batch size"),
        ({"batches": (8, 32, 4096)}, "repeat"),
        ({"steps": 2}, "count"),
        ({"optimizer": lambda p: torch.optim.SGD(p, 0.0)}, "how soon they reach"),
    ],
)
def test_what_cannot_be_probed_is_refused(options, words):
    with pytest.raises(TopoutError) as raised:
        probe_batch(classifier(), cross_entropy, labelled(), **{"batches": (8, 32, 128), "steps": 10, **options})
    assert words in raised.value.why


def test_a_stream_is_refused():
    with pytest.raises(TopoutError, match="several sizes"):
        probe_batch(classifier(), cross_entropy, iter([]), batches=(8, 32, 128))


def test_the_search_goes_on_until_the_best_rate_has_worse_neighbours():
    tried = []

    def attempt(exponent):
        tried.append(exponent)
        return float((exponent - 5) ** 2 + 1)

    assert enclosed((0, 1, 2), attempt) == 5
    assert tried == [0, 1, 2, 3, 4, 5, 6]


def test_where_no_rate_gets_there_lower_ones_are_tried():
    tried = []

    def attempt(exponent):
        tried.append(exponent)
        return 7.0 if exponent == -2 else float("inf")

    assert enclosed((0, 1), attempt) == -2
    assert tried == [0, 1, -1, -2, -3]


def test_a_crossing_lies_between_two_looks():
    assert crossing([0, 1, 2, 3], [4.0, 3.0, 1.0, 0.5], 2.0) == 1.5
    assert crossing([0, 1, 2], [4.0, 3.0, 2.5], 2.0) is None


def test_late_looks_are_averaged_and_early_ones_are_not():
    assert smoothed([1, 2, 100, 108, 116], [5.0, 4.0, 1.0, 2.0, 3.0]) == [5.0, 4.0, 1.5, 2.0, 2.5]


def test_batches_go_through_all_samples_before_one_comes_again():
    batches = Samples(torch.arange(10), torch.device("cpu"), 0).batches(4, 0)
    drawn = torch.cat([next(batches) for _ in range(5)]).tolist()
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10))
