"""Run on two ranks: what scripts do besides a plain step, and what they do wrong. Prints one JSON object."""

import json
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import topout
from tests.train.mesh.models import LAYOUT, OPTIMIZERS, Transformer, token_loss, tokens
from topout.train.mesh import hybrid

torch.set_num_threads(1)
context = topout.init()
place = context.place


def made(mesh, build=Transformer, optimizer=OPTIMIZERS["sgd"], **options):
    torch.manual_seed(7)
    whole = mesh if "mesh" in mesh else {"mesh": mesh, "layout": LAYOUT if build is Transformer else {}}
    return hybrid(place, build, token_loss, optimizer, mesh=whole, **options)


def error(call):
    try:
        call()
    except Exception as raised:
        return getattr(raised, "problem", str(raised))
    return None


def uneven_rows():
    """11 samples on one row and 5 on the other count as 16."""
    trainer = made({"dp": 2})
    inputs, targets = tokens(0)
    some = slice(0, 11) if trainer.row == 0 else slice(11, 16)
    got = [trainer.step(inputs[some], targets[some]).item(), trainer.step(*share(1, trainer)).item()]
    torch.manual_seed(7)
    model = Transformer()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    wanted = []
    for step in range(2):
        inputs, targets = tokens(step)
        value = token_loss(model(inputs), targets)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        wanted.append(value.item())
    return max(abs(a - b) for a, b in zip(got, wanted, strict=True))


def share(step, trainer):
    return [value.chunk(trainer.num_rows)[trainer.row] for value in tokens(step)]


def unused_and_frozen():
    """The second layer is used by row 0 alone, the third by none, the fourth is frozen."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(4))
            self.layers[3].weight.requires_grad_(False)

        def forward(self, x):
            first = self.layers[0](x)
            return self.layers[3](first) + (self.layers[1](x) if x[0, 0] == 0 else 0)

    torch.manual_seed(7)
    trainer = hybrid(
        place, Model, lambda outputs, targets: (outputs * targets).mean(),
        lambda parameters: torch.optim.SGD(parameters, 1.0), mesh={"dp": 2},
    )  # fmt: skip
    before = {name: parameter.detach().clone() for name, parameter in trainer.named_parameters().items()}
    trainer.step(torch.full((2, 2), float(trainer.row)), torch.ones(2, 2))
    moved = [name for name, now in trainer.named_parameters().items() if not torch.equal(now, before[name])]
    # the gradient of layers.1.bias is two samples' 1/4 on row 0 and nothing on row 1: 1/4 on both
    step = before["layers.1.bias"] - trainer.named_parameters()["layers.1.bias"].detach()
    return moved, step.tolist()


class LooksAtValues(Transformer):
    """Cannot be run on tensors without values; in the middle lies a part with statistics."""

    class Middle(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(8)

        def forward(self, x):
            return self.norm(x) if bool(x.isfinite().all()) else x

    def __init__(self):
        super().__init__()
        self.middle = self.Middle()

    def sequence(self):
        return [self.embed, *self.blocks[:2], self.middle, *self.blocks[2:], self.norm, self.head]


def hangs_on_values():
    """How far losses are from one process's, in a step and in an evaluation after it."""

    def refuse(*_, **__):
        raise AssertionError("an object was unpickled from the network")

    torch.distributed.recv_object_list = refuse
    inputs, targets = tokens(0)
    found = []
    for schedule, count in (("gpipe", 1), ("interleaved", 4)):
        mesh = {"mesh": {"pp": 2, "schedule": schedule, "microbatches": count}}
        trainer = made(mesh, LooksAtValues)
        got = [trainer.step(inputs, targets).item(), trainer.evaluate(inputs, targets).item()]
        torch.manual_seed(7)
        model = LooksAtValues()
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        batches = zip(inputs.chunk(count), targets.chunk(count), strict=True)
        value = sum(token_loss(model(some), wanted) for some, wanted in batches) / count
        value.backward()
        optimizer.step()
        # after as many statistics as there are microbatches
        wanted = [value.item(), token_loss(model.eval()(inputs), targets).item()]
        found.append([abs(a - b) for a, b in zip(got, wanted, strict=True)])
    return found


def grouped_with_schedule_in_bf16():
    """Groups by name, a schedule of torch's, state of the loader."""

    def optimizer(parameters):
        decayed = [p for name, p in parameters.named if p.dim() > 1]
        others = [p for name, p in parameters.named if p.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, 1e-2, foreach=True)

    losses = []
    for mesh in ({"tp": 2}, {"pp": 2}, {"fsdp": 2}):
        trainer = made(mesh, optimizer=optimizer, precision="bf16", clip_norm=1.0)
        schedule = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 1, 0.5)
        data = TensorDataset(*tokens(3, size=20))
        loader = trainer.shard(DataLoader(data, batch_size=16 // trainer.num_rows, shuffle=True, drop_last=True))
        seen = []
        for _ in range(3):
            for inputs, targets in loader:
                seen.append(trainer.step(inputs, targets).item())
                schedule.step()
        rates = [group["lr"] for group in trainer.optimizer.param_groups]
        losses.append([seen, rates, float(trainer.gradient_norm)])
    return losses


def wrong():
    inputs, targets = tokens(0)
    peers = made({"tp": 2})
    sizes = made({"pp": 2, "microbatches": 4})
    rows = made({"dp": 2, "microbatches": 4})
    other = torch.Generator().manual_seed(place.rank)
    return {
        "world": error(lambda: made({"dp": 2, "tp": 2})),
        "differs": error(lambda: made({"pp": 2, "microbatches": 4 + 4 * place.rank})),
        "one fails": error(lambda: made({"dp": 2}, optimizer=fails_on_rank_1)),
        "other samples": error(lambda: peers.step(torch.randint(32, (4, 8), generator=other), targets[:4])),
        "other sizes": error(lambda: sizes.step(inputs[: 8 + 4 * place.rank], targets[: 8 + 4 * place.rank])),
        "one does not divide": error(lambda: rows.step(inputs[: 8 - place.rank], targets[: 8 - place.rank])),
    }


def fails_on_rank_1(parameters):
    if place.rank == 1:
        raise ValueError("no optimizer here")
    return torch.optim.SGD(parameters, 0.1)


def not_finite():
    trainer = made({"dp": 2}, optimizer=lambda parameters: torch.optim.SGD(parameters, 1e30))
    for step in range(4):
        trainer.step(*share(step, trainer))
    return error(lambda: trainer.save(sys.argv[1]))


found = {
    "uneven": uneven_rows(),
    "unused": unused_and_frozen(),
    "values": hangs_on_values(),
    "grouped": grouped_with_schedule_in_bf16(),
    "wrong": wrong(),
    "not finite": not_finite(),
}
print(json.dumps(found), flush=True)
context.close()
