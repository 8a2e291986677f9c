"""Gradients whose memory DDP has lost end the training; those that a script puts in place of DDP's go on."""

HEAD = """
import copy, io, json
import torch
import torch.distributed as dist
from torch import nn
import topout
from topout.schema.errors import TopoutError

ctx = topout.init()
drawn = torch.Generator().manual_seed(100 + ctx.rank)
said = {}


def trained(name, touch, num_steps=8, num_parts=1, **options):
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    model, optimizer = ctx.wrap(inner, torch.optim.SGD(inner.parameters(), 0.01, momentum=0.9), **options)
    said[name] = None
    try:
        for number in range(num_steps):
            optimizer.zero_grad()
            for part in range(num_parts):
                model.require_backward_grad_sync = part == num_parts - 1
                model(torch.randn(8, 4, generator=drawn)).square().mean().backward()
            touch(number, model)
            optimizer.step()
    except TopoutError as error:
        said[name] = str(error)
    sums = torch.stack([p.detach().double().sum() for p in inner.parameters()])
    all_sums = [torch.empty_like(sums) for _ in range(ctx.world_size)]
    dist.all_gather(all_sums, sums)
    said[name + ", equal"] = all(torch.equal(one, sums) for one in all_sums)


def by_data(number, model):
    if number == 1:
        model.module[2].weight.grad.data = model.module[2].weight.grad.data * 0.5


def by_set(number, model):
    model.module[0].bias.grad.set_(torch.ones(8))


def assigned(number, model):
    for one in model.parameters():
        one.grad = one.grad * 0.5


def in_place(number, model):
    for one in model.parameters():
        one.grad.data *= 0.5


def copied(number, model):
    assigned(number, model)
    copy.deepcopy(model)
    torch.save(model, io.BytesIO())
    with torch.no_grad():
        model(torch.zeros(1, 4))


trained("data", by_data)
trained("set", by_set)
trained("data, in parts", by_data, num_parts=2)
trained("assigned", assigned)
trained("assigned, in parts", assigned, num_parts=2)
trained("assigned, early", lambda *_: None, early_update=True)
trained("assigned, unused", assigned, find_unused_parameters=True)
trained("in place", in_place)
trained("copied", copied)
print(json.dumps(said))
"""


def test_a_gradient_that_ddp_has_lost_ends_the_training(run_ranks) -> None:
    for ended in run_ranks(HEAD, 2):
        assert ended.code == 0, ended.stderr
        errors = {name: text for name, text in ended.said.items() if "equal" not in name and text}
        assert set(errors) == {"data", "set", "data, in parts"}
        assert "The gradient of 2.weight is not averaged" in errors["data"]
        assert "The gradient of 0.bias is not averaged" in errors["set"]
        assert all(ended.said[f"{name}, equal"] for name in ended.said if not (name in errors or "equal" in name))
