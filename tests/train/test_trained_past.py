"""Training through the bare model ends; whatever trains one model on all ranks goes on."""

import pickle

import pytest
import torch

from topout.train import trained_past

HEAD = """
import json, sys
import torch
import torch.distributed as dist
from torch import nn
import topout
from topout.schema.errors import TopoutError

ctx = topout.init()
torch.manual_seed(0)
drawn = torch.Generator().manual_seed(100 + ctx.rank)
said = {}

def batch():
    return torch.randn(8, 4, generator=drawn)

def net():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))

def loss_of(model, x):
    return model(x).square().mean()

def train(name, optimizer, step, models, num_steps=9):
    said[name] = None
    try:
        for number in range(num_steps):
            step(number)
    except TopoutError as error:
        said[name] = str(error)
    ctx.wait()
    sums = torch.stack([p.detach().double().sum() for model in models for p in model.parameters()])
    all_sums = [torch.empty_like(sums) for _ in range(ctx.world_size)]
    dist.all_gather(all_sums, sums)
    said[name, "equal"] = all(torch.equal(one, sums) for one in all_sums)
"""
PAST = """
def plainly(optimizer, model, x=None):
    optimizer.zero_grad()
    loss_of(model, batch() if x is None else x).backward()
    optimizer.step()

bare = net()
optimizer = torch.optim.Adam(bare.parameters(), 0.01)
model, optimizer = ctx.wrap(bare, optimizer)
train("from the first step", optimizer, lambda number: plainly(optimizer, bare), [bare])

bare = net()
optimizer = torch.optim.SGD(bare.parameters(), 0.01)
model = ctx.wrap(bare)
train("from the sixth on", optimizer, lambda number: plainly(optimizer, bare if number > 4 else model), [bare])

class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    def encode(self, x):
        return self.layer(x)
    def forward(self, x):
        return self.encode(x)

model = ctx.wrap(Coder())
optimizer = torch.optim.SGD(model.parameters(), 0.01)
train("another method", optimizer, lambda number: plainly(optimizer, model.module.encode), [model])

warming = ctx.wrap(bare := net())
optimizer = torch.optim.SGD(bare.parameters(), 0.01)
def warmed(number):
    optimizer.param_groups[0]["lr"] = 0.01 * (number > 3)
    plainly(optimizer, bare)
train("a rate of zero at first", optimizer, warmed, [bare], num_steps=17)
"""
RIGHT = """
def averaged(optimizer, model):
    optimizer.zero_grad()
    loss_of(model, batch()).backward()

bare = net()
model = ctx.wrap(bare)
optimizer = torch.optim.SGD(bare.parameters(), 0.01)
def accumulated(number):
    optimizer.zero_grad()
    with model.no_sync():
        loss_of(model, batch()).backward()
    loss_of(model, batch()).backward()
    optimizer.step()
train("accumulated", optimizer, accumulated, [bare], num_steps=66)

bare = net()
model = ctx.wrap(bare)
optimizer = torch.optim.SGD(bare.parameters(), 0.01)
def by_hand(number):
    averaged(optimizer, bare)
    for parameter in bare.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= ctx.world_size
    optimizer.step()
train("gradients averaged by hand", optimizer, by_hand, [bare])

model = ctx.wrap(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
def parameters_by_hand(number):
    averaged(optimizer, model.module)
    optimizer.step()
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= ctx.world_size
train("parameters averaged by hand", optimizer, parameters_by_hand, [model])

model = ctx.wrap(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
def equal_data(number):
    optimizer.zero_grad()
    loss_of(model.module, torch.full((2, 4), 1.0 + number)).backward()
    optimizer.step()
train("equal data", optimizer, equal_data, [model])

model = ctx.wrap(net())
optimizer = torch.optim.SGD(model.parameters(), 0.01)
def twice(number):
    optimizer.zero_grad(set_to_none=False)
    loss_of(model, batch()).backward()
    optimizer.step()
    optimizer.step()
train("two steps on one gradient", optimizer, twice, [model])

made, critic = nn.Linear(4, 4), nn.Linear(4, 1)
making, judging = torch.optim.Adam(made.parameters(), 0.01), torch.optim.Adam(critic.parameters(), 0.01)
made, making = ctx.wrap(made, making)
critic, judging = ctx.wrap(critic, judging)
def adversaries(number):
    fake = made(batch())
    judging.zero_grad()
    (critic(fake.detach()).mean() - critic(batch()).mean()).backward()
    judging.step()
    making.zero_grad()
    (-critic(fake).mean()).backward()
    making.step()
train("adversaries", making, adversaries, [made, critic])

model = ctx.wrap(nn.Linear(4, 1))
searching = torch.optim.LBFGS(model.parameters(), 0.01, max_iter=2)
def searched(number):
    def closure():
        searching.zero_grad()
        value = loss_of(model, torch.ones(2, 4))
        value.backward()
        return value
    searching.step(closure)
train("closures", searching, searched, [model])

model = ctx.wrap(net())
parts = list(model.parameters())
first, second = torch.optim.SGD(parts[:2], 0.01), torch.optim.SGD(parts[2:], 0.01)
def in_parts(number):
    first.zero_grad()
    averaged(second, model)
    first.step()
    second.step()
    model.eval()
    with torch.no_grad():
        model(batch())
        model.module(batch())
    model.train()
train("two optimizers, and evaluation", first, in_parts, [model])

by_turns = [ctx.wrap(nn.Linear(4, 1)) for _ in range(2)]
both = torch.optim.SGD([parameter for model in by_turns for parameter in model.parameters()], 0.01)
def in_turns(number):
    averaged(both, by_turns[number % 3 == 0])
    both.step()
train("by turns", both, in_turns, by_turns, num_steps=17)

from topout.train.local_sgd import LocalSGD
bare = nn.Linear(4, 1)
local, optimizer = LocalSGD(bare, ctx.place, every=3), torch.optim.SGD(bare.parameters(), 0.01)
def locally(number):
    averaged(optimizer, bare)
    optimizer.step()
    local.step()
train("averaged rarely", optimizer, locally, [bare])

for name in ("early_update", "overlap_forward"):
    bare = nn.Linear(4, 1)
    model, optimizer = ctx.wrap(bare, torch.optim.SGD(bare.parameters(), 0.01), **{name: True})
    def early(number):
        averaged(optimizer, model)
        optimizer.step()
    train(name, optimizer, early, [bare])
"""
ENDS = """
print(json.dumps({" ".join(name) if isinstance(name, tuple) else name: value for name, value in said.items()}))
"""


def test_what_is_trained_through_the_bare_model_ends_on_all_ranks_alike(run_ranks) -> None:
    ranks = run_ranks(HEAD + PAST + ENDS, 2)
    for ended in ranks:
        assert ended.code == 0, ended.stderr
        errors = {name: said for name, said in ended.said.items() if not name.endswith(" equal")}
        assert len(errors) == 4
        for name, said in errors.items():
            assert said is not None and said.startswith("The model was trained past what wrap returned."), name
    assert ranks[0].said == ranks[1].said


def test_what_trains_one_model_on_all_ranks_goes_on(run_ranks) -> None:
    for ended in run_ranks(HEAD + RIGHT + ENDS, 2):
        assert ended.code == 0, ended.stderr
        assert [name for name, said in ended.said.items() if said not in (None, True)] == []


def test_it_is_looked_at_few_steps() -> None:
    assert [number for number in range(1, 200) if trained_past._is_due(number)] == [2, 4, 8, 16, 32, 64, 128, 192]


@pytest.mark.parametrize("is_wanted", [True, False])
def test_a_mark_is_as_true_as_what_was_there_and_saved_as_that(is_wanted: bool) -> None:
    model = torch.nn.Linear(1, 1)
    model.__dict__["require_forward_param_sync"] = is_wanted
    mark = trained_past._marked(model)
    assert trained_past._marked(model) is mark
    assert bool(mark) is is_wanted
    assert pickle.loads(pickle.dumps(mark)) is is_wanted
