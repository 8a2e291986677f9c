"""Local SGD and DiLoCo on one of several ranks; prints one JSON object of facts for the tests to judge."""

import json
import shutil
import tempfile

import torch
import torch.distributed as dist
from torch import nn

from topout.train.checkpoint import Checkpoints
from topout.train.diloco import DiLoCo
from topout.train.exchange import from_first
from topout.train.local_sgd import LocalSGD
from topout.train.place import alone, joined


def make_model(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2, dtype=torch.float32))


def train(model, optimizer, local, place, steps, begin=0):
    met = []
    for step in range(begin, begin + steps):
        generator = torch.Generator().manual_seed(10 * step + place.rank)
        optimizer.zero_grad()
        model(torch.randn(8, 6, generator=generator)).square().mean().backward()
        optimizer.step()
        if local.step():
            met.append(step + 1)
    return met


def values(model):
    return [tensor.double().flatten().tolist() for tensor in (*model.parameters(), *model.buffers())]


def local_sgd(place, every, warmup, steps):
    model = make_model(place.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    local = LocalSGD(model, place, every=every, warmup=warmup)
    begun = values(model)
    met = train(model, optimizer, local, place, steps)
    before = values(model)
    local.finish()
    return {"begun": begun, "met": met, "before": before, "after": values(model), "bytes": local.bytes_averaged}


def frozen(place):
    """A head on frozen layers: of bf16, of whole numbers, and one that is frozen between two meetings."""
    model = make_model(place.rank)
    model[0].to(torch.bfloat16).requires_grad_(False)
    model.table = nn.Parameter(torch.arange(4) + place.rank, requires_grad=False)
    local = LocalSGD(model, place, every=4)
    begun = values(model)
    with torch.no_grad():
        for parameter in model[2].parameters():
            parameter.add_(place.rank + 1)
    # as the discriminator of a GAN: learnt, and frozen while the generator does
    if place.rank == 0:
        # what one rank happens to hold must not decide what travels
        model[2].bias.grad = torch.ones_like(model[2].bias)
    model[2].bias.requires_grad_(False)
    local.step()
    model[2].weight.requires_grad_(False)
    local.step()
    local.finish()
    return {"begun": begun, "after": values(model), "bytes": local.bytes_averaged}


def diloco_finished(place, every=2, steps=3):
    """Finished, saved and taken up: nothing is new."""
    model = make_model(place.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    local = DiLoCo(model, optimizer, place, every=every)
    train(model, optimizer, local, place, steps)
    local.finish()
    before = values(model)
    again = DiLoCo(model, optimizer, place, every=every)
    again.load_state_dict(local.state_dict())
    again.finish()
    return {"before": before, "after": values(model)}


def diloco(place, steps=6, resume_at=None, **options):
    model = make_model(place.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    local = DiLoCo(model, optimizer, place, **options)
    begun = values(model)
    met = []
    if resume_at is not None:
        met = train(model, optimizer, local, place, resume_at)
        saved = local.state_dict(), {name: value.clone() for name, value in model.state_dict().items()}
        model = make_model(77)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        local = DiLoCo(model, optimizer, place, **options)
        local.load_state_dict(saved[0])
        model.load_state_dict(saved[1])
    begin = resume_at or 0
    met += train(model, optimizer, local, place, steps - begin, begin)
    return {"begun": begun, "met": met, "after": values(model)}


def diloco_frozen(place):
    """A head that is frozen after the first meeting, and one that learns while it is not, as a discriminator does."""
    model = make_model(place.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    local = DiLoCo(model, optimizer, place, every=1)
    train(model, optimizer, local, place, 1)
    before = values(model)
    model[2].requires_grad_(False)
    model[1].bias.requires_grad_(False)
    with torch.no_grad():
        model[1].bias.add_(place.rank)
    train(model, optimizer, local, place, 1, begin=1)
    return {"before": before, "after": values(model)}


def checkpointed(place, make):
    """Saved between two meetings; then what each rank has, and what it is given back."""
    folder = from_first(tempfile.mkdtemp(), place)

    def built(seed):
        model = make_model(seed)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        local = make(model, optimizer)
        state = {"model": model, "optimizer": optimizer, "local": local}
        return model, optimizer, local, Checkpoints(folder, state=state, place=place)

    def kept(model, optimizer):
        momenta = [value.double().flatten().tolist() for state in optimizer.state.values() for value in state.values()]
        return values(model) + momenta

    model, optimizer, local, checkpoints = built(place.rank)
    train(model, optimizer, local, place, 3)
    checkpoints.save()
    checkpoints.close()
    before = kept(model, optimizer)
    model, optimizer, local, checkpoints = built(77)
    checkpoints.restore()
    checkpoints.close()
    if place.is_first:
        shutil.rmtree(folder)
    return {"before": before, "after": kept(model, optimizer)}


def main():
    dist.init_process_group("gloo")
    place = joined(torch.device("cpu"), local_rank=0, local_world_size=1)
    facts = {
        "local": local_sgd(place, every=4, warmup=2, steps=9),
        "one_step": local_sgd(place, every=1, warmup=0, steps=1),
        "apart": local_sgd(place, every=9, warmup=0, steps=1),
        "every_step": local_sgd(place, every=1, warmup=0, steps=6),
        "frozen": frozen(place),
        "local_checkpointed": checkpointed(place, lambda model, _: LocalSGD(model, place, every=2)),
        "diloco_checkpointed": checkpointed(place, lambda model, inner: DiLoCo(model, inner, place, every=2)),
        "diloco_finished": diloco_finished(place),
        "diloco_frozen": diloco_frozen(place),
        "diloco_plain": diloco(place, every=1, outer_lr=1.0, outer_momentum=0.0),
        "diloco": diloco(place, every=3),
        "diloco_resumed": diloco(place, every=2, resume_at=3),
        "diloco_straight": diloco(place, every=2),
        "diloco_apart": diloco(place, every=6, steps=5),
        "diloco_met": diloco(place, every=5, steps=5, outer_lr=0.5, outer_momentum=0.8),
        "world_1": diloco(alone(), every=6, steps=6, outer_lr=1.0, outer_momentum=0.0),
        "world_1_apart": diloco(alone(), every=7, steps=6),
    }
    print(json.dumps(facts))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
