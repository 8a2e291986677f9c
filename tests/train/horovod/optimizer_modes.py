"""Trains one small model in every mode of `DistributedOptimizer`; prints parameters after each as JSON.

Each rank takes its half of every batch of 8, so that averaging gives what one process gets of the whole batch.
"""

import contextlib
import io
import json
import os
import warnings

import horovod.torch as hvd
import numpy as np
import torch
from torch import nn

from topout.train.horovod.optimizer import _told

NUM_STEPS = 4


def make_model():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def batches(num=NUM_STEPS):
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(8, 4, generator=generator), torch.randn(8, 2, generator=generator)) for _ in range(num)]


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()


def train(half, step_kind="plain", set_to_none=True, lr=0.1, **options):
    model = make_model()
    if hvd.rank() != 0:
        nn.init.zeros_(model[0].weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    if options.pop("groups_of_tensors", False):
        options["groups"] = [[model[0].weight, model[2].weight]]
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **options)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    passes = options.get("backward_passes_per_step", 1)
    for number, (whole_inputs, whole_labels) in enumerate(batches()):
        if step_kind == "replaced" and number == 1:
            state = optimizer.state_dict()
            # never garbage by itself
            optimizer.myself = optimizer
            optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
            optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **options)
            optimizer.load_state_dict(state)
        optimizer.zero_grad(set_to_none=set_to_none)
        inputs, labels = whole_inputs[half], whole_labels[half]
        for part in range(passes):
            rows = slice(part * len(inputs) // passes, (part + 1) * len(inputs) // passes)
            (nn.functional.mse_loss(model(inputs[rows]), labels[rows]) / passes).backward()
        if step_kind == "clipped":
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            with optimizer.skip_synchronize():
                optimizer.step()
        elif step_kind == "synchronized twice":
            optimizer.synchronize()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                optimizer.step()
        else:
            optimizer.step()
    return flat(model)


class Halved(hvd.Compression.none):
    """A compression of the user's own: half of every gradient travels."""

    @staticmethod
    def compress(tensor):
        return tensor * 0.5, None

    @staticmethod
    def decompress(tensor, ctx):
        return tensor * 2.0


def unused(model, is_first):
    """Rank 0 leaves out one layer, the others do not; and no rank uses the last."""
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for number in range(3):
        optimizer.zero_grad()
        inputs = torch.ones(2, 3)
        hidden = inputs if is_first and number > 0 else model[1](inputs)
        model[0](hidden).sum().backward()
        optimizer.step()
    return flat(model)


def sparse(half, kind=torch.optim.SGD, **options):
    torch.manual_seed(1)
    model = nn.Embedding(6, 2, sparse=True)
    optimizer = hvd.DistributedOptimizer(kind(model.parameters(), lr=0.1), **options)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.tensor([0, 1, 1, 2, 3, 1, 1, 5])[half]).square().sum().backward()
        optimizer.step()
    return flat(model)


def optimizer_state(rank):
    """Rank 1's learning rate and moments reach rank 0, and a scheduler made before still drives the optimizer."""
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=np.float64(0.1) * (rank + 1))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for p in model.parameters():
        p.grad = torch.full_like(p, rank + 1.0)
    for _ in range(rank + 1):
        optimizer.step()
    wrapped = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_optimizer_state(wrapped, root_rank=1)
    scheduler.step()
    state = wrapped.state[next(model.parameters())]
    return [wrapped.param_groups[0]["lr"], float(state["step"]), state["exp_avg"].flatten()[0].item()]


def clip(parameters):
    nn.utils.clip_grad_norm_(parameters, 0.01)


def drop(parameters):
    parameters[0].grad = None


def unscale(parameters):
    parameters[1].grad = parameters[1].grad / 1024


def unscale_by_scaler(parameters):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.ones(1))
    scaler.unscale_(torch.optim.SGD(parameters, lr=0.1))


def spoil(parameters):
    """Before the copy, by a hook: what is no number is no change."""
    parameters[0].register_hook(lambda gradient: gradient * float("nan"))


def said_of(change, num_steps=4, set_to_none=True, passes=1, is_in_closure=False):
    """What is told where gradients are changed between backward and step."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=passes)
    parameters = list(model.parameters())

    def closure():
        optimizer.zero_grad(set_to_none=set_to_none)
        for _ in range(passes):
            model(torch.ones(2, 4)).sum().backward()
        change(parameters)

    _told.clear()
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        for _ in range(num_steps):
            if is_in_closure:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
    return said.getvalue()


def grown(half, is_wrapped_again):
    """The first layer is frozen, and the last not held, when the optimizer is wrapped; both are trained later."""
    model = make_model()
    model[0].requires_grad_(False)
    inner = torch.optim.SGD([model[0].weight, model[0].bias, model[2].weight], lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(inner)
    _told.clear()
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        for number, (inputs, labels) in enumerate(batches()):
            if number == 2:
                model[0].requires_grad_(True)
                inner.add_param_group({"params": [model[2].bias]})
                if is_wrapped_again:
                    optimizer = hvd.DistributedOptimizer(inner)
            optimizer.zero_grad()
            model[2].bias.grad = None if number < 2 else model[2].bias.grad
            nn.functional.mse_loss(model(inputs[half]), labels[half]).backward()
            optimizer.step()
    return [said.getvalue(), flat(model)]


def changes_between_passes():
    """Allowed: what is copied is what the last pass leaves. Gradients of the halves share memory and its counter."""
    halves = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(halves, lr=0.1), backward_passes_per_step=2)
    for _ in range(3):
        optimizer.zero_grad()
        for number in range(2):
            torch.cat(halves).square().sum().backward()
            if number == 0:
                clip(halves)
        optimizer.step()


def mistakes():
    said = {}
    model = make_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(inner, named_parameters=model.named_parameters())
    loss = model(torch.ones(2, 4)).sum()
    loss.backward(retain_graph=True)
    for name, call in {"race": optimizer.zero_grad, "step": optimizer.step, "after": optimizer.zero_grad}.items():
        try:
            call()
            said[name] = None
        except AssertionError as error:
            said[name] = str(error)
    model(torch.ones(2, 4)).sum().backward()
    try:
        model(torch.ones(2, 4)).sum().backward()
        said["twice"] = None
    except AssertionError as error:
        said["twice"] = str(error)
    optimizer.synchronize()
    for name, options in {
        "unnamed": {"named_parameters": list(model.named_parameters())[:1]},
        "doubled": {"named_parameters": [("a", p) for p in model.parameters()]},
        "adasum": {"op": hvd.Adasum},
    }.items():
        try:
            hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **options)
        except Exception as error:
            said[name] = type(error).__name__
    other = nn.Linear(2 + hvd.rank(), 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(other.parameters(), lr=0.1), named_parameters=other.named_parameters()
    )
    other(torch.ones(1, 2 + hvd.rank())).sum().backward()
    try:
        optimizer.step()
    except Exception as error:
        said["models"] = str(error)
    said["is SGD"] = isinstance(optimizer, torch.optim.SGD)
    return said


def main():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    half = slice(rank * 8 // size, (rank + 1) * 8 // size)
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        found = {
            "plain": train(half),
            "kept gradients": train(half, set_to_none=False),
            "fp16": train(half, compression=hvd.Compression.fp16),
            "own compression": train(half, compression=Halved),
            "two passes": train(half, backward_passes_per_step=2),
            "two passes, kept": train(half, backward_passes_per_step=2, set_to_none=False),
            "groups": train(half, groups=2),
            "groups of tensors": train(half, groups_of_tensors=True),
            "predivided": train(half, gradient_predivide_factor=2.0),
            "replaced": train(half, "replaced"),
            "replaced, own compression": train(half, "replaced", compression=Halved),
            "sum": train(half, op=hvd.Sum, lr=0.1 / size),
            "clipped": train(half, "clipped"),
            "synchronized twice": train(half, "synchronized twice"),
        }
        os.environ["HOROVOD_FUSION_THRESHOLD"] = "0"
        found["no fusion"] = train(half)
        del os.environ["HOROVOD_FUSION_THRESHOLD"]
        torch.manual_seed(5)
        found["unused"] = unused(nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 3), nn.Linear(1, 1)]), rank == 0)
        found["sparse"] = sparse(half)
        found["sparse as dense"] = sparse(half, torch.optim.SparseAdam, sparse_as_dense=True)
        found["optimizer state"] = optimizer_state(rank)
        changes_between_passes()
    found["grown"] = {again: grown(half, again == "wrapped again") for again in ("wrapped once", "wrapped again")}
    found["said of these"] = said.getvalue()
    found["said of late changes"] = {
        "clipped": said_of(clip),
        "clipped, kept gradients": said_of(clip, set_to_none=False),
        "clipped after two passes": said_of(clip, passes=2),
        "clipped in a closure": said_of(clip, is_in_closure=True),
        "dropped": said_of(drop),
        "unscaled": said_of(unscale),
        "unscaled by a scaler": said_of(unscale_by_scaler),
    }
    found["said of no loss"] = said_of(clip, num_steps=1) + said_of(spoil)
    found["mistakes"] = mistakes()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
