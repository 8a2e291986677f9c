"""Evaluation on all ranks: every sample once at any world size, and the figures that one process has.

    def step(batch):
        images, labels = batch
        out = model(images)
        return {"loss": mean(F.cross_entropy(out, labels), len(labels)), "accuracy": mean(out.argmax(1) == labels)}

    result = evaluate(step, loader, place, model=model)     # {"loss": 0.41, "accuracy": 0.87}

Whole batches are dealt out and no rank waits for another before the end, so ranks may have a batch less or none. Not
for a step that makes collectives of its own; see `model` for those that a model makes.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from topout.train.agreement import raise_together
from topout.train.metrics import Mean, PerSample, Tally, mean, per_sample
from topout.train.place import Place
from topout.train.tensor_exchange import from_first
from topout.train.whole_batches import dealt

__all__ = ["Mean", "PerSample", "evaluate", "mean", "per_sample"]


def evaluate(
    step: Callable[[Any], Any],
    loader: Iterable[Any],
    place: Place,
    *,
    model: torch.nn.Module | None = None,
    own_share: bool = False,
) -> dict[str, Any]:
    """What `step` says of each batch, put together over all batches of all ranks; every rank gets the result.

    `loader` is the one that a single process would use: an ordinary DataLoader. Anything else that can be iterated is
    gone through whole by every rank. `own_share`: it gives each rank its own part already.
    `model` is set to evaluation and back, with rank 0's buffers meanwhile. Pass it where it is wrapped: a DDP module
    otherwise meets the other ranks in forward, where some have no batch. One that is sharded runs on as many batches
    on every rank; results of the additional ones are left out.
    """
    tally = Tally()
    failure: Exception | None = None
    with torch.no_grad(), resting(model, place):
        batches = dealt(loader, place, own_share=own_share, in_step=model is not None and _meets_in_forward(model))
        try:
            for number, batch in batches:
                try:
                    said = step(batch)
                    if number is not None:
                        tally.add(number, said)
                except Exception as error:
                    batches.throw(error)  # raises it again; first the others are told, where ranks go in step
                    raise
        except Exception as error:
            failure = error
    raise_together(failure, place)
    return tally.combined(place)


@contextmanager
def resting(model: torch.nn.Module | None, place: Place) -> Iterator[None]:
    """In evaluation mode, equal on all ranks, and quiet: nothing in forward waits for another rank. Then as before."""
    if model is None:
        yield
        return
    modules = list(model.modules())
    modes = [module.training for module in modules]
    wrappers = [module for module in modules if isinstance(module, DistributedDataParallel)]
    syncs = [module.require_forward_param_sync for module in wrappers]
    # statistics of BatchNorm are each rank's own until somebody brings rank 0's
    buffers = [buffer for buffer in model.buffers() if type(buffer).__name__ != "DTensor"]
    own = [] if place.world_size == 1 else [buffer.clone() for buffer in buffers]
    model.eval()
    try:
        for module in wrappers:
            module.require_forward_param_sync = False
        from_first(buffers, place)
        yield
    finally:
        for buffer, before in zip(buffers, own, strict=False):
            buffer.copy_(before)
        model.train(modes[0])
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
        for module, sync in zip(wrappers, syncs, strict=True):
            module.require_forward_param_sync = sync


def _meets_in_forward(model: torch.nn.Module) -> bool:
    """Whether its parameters are gathered from the ranks for each forward."""
    return any(
        hasattr(module, "_get_fsdp_state") or type(module).__name__ == "FullyShardedDataParallel"
        for module in model.modules()
    )
