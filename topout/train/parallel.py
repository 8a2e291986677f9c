"""A model made data-parallel: torch's DDP, with the checks and the choices that people otherwise make by hand.

Replicas are compared by name before they meet, gradients are views of DDP's buffers, and statistics of BatchNorm are
taken from rank 0 in evaluation instead of before every step as well, which leaves rank 0's model what it was. Not for
models that do not fit one device; that is FSDP2's, and a module that `fully_shard` has touched is left alone.
"""

import hashlib
import json
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel

from topout.schema.errors import TopoutError
from topout.train import left_out
from topout.train.exchange import from_first, gather
from topout.train.place import Place


def data_parallel(
    model: Any, place: Place, *, find_unused_parameters: bool = False, bucket_cap_mb: float | None = None
) -> Any:
    """The model itself in a world of one, or when it needs no averaging; else a DDP module around it.

    A DDP module comes back as it is, unless it was made here and layers were unfrozen or added since.
    """
    model.to(place.device)
    if place.world_size == 1:
        return model
    former = None
    if (ddp := _ddp_of(model)) is not None:
        left_out.note_own(ddp)
        # on any rank: where the others have not, the check below says what differs
        if not any(gather(left_out.has_grown(ddp), place)):
            return model
        if ddp is not model:
            raise TopoutError(
                "The model that is to be wrapped again was compiled.",
                why="What was compiled is the DDP module of before, and goes on averaging what that averages.",
                do="model = torch.compile(ctx.wrap(model._orig_mod))",
            )
        former, model = ddp, ddp.module
    elif is_distributed(model):
        return model
    check_same_model(model, place)
    left_out.watch(model)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return model
    make = LazyStatistics if _has_statistics_only(model) else DistributedDataParallel
    ddp = make(
        model,
        device_ids=[place.device] if place.device.type == "cuda" else None,
        process_group=place.group,
        gradient_as_bucket_view=True,
        find_unused_parameters=find_unused_parameters,
        bucket_cap_mb=bucket_cap_mb,
    )
    left_out.made(ddp)
    if former is not None:
        former.register_forward_pre_hook(_refuse_training)
    return ddp


def _refuse_training(_module: Any, _inputs: Any) -> None:
    """Of a DDP module in whose place another is: what it does not average is taken for averaged from now on."""
    if torch.is_grad_enabled():
        raise TopoutError(
            "The model was wrapped anew, and this is its DDP module of before.",
            why="That one does not average what was unfrozen or added since: each rank would get a model of its own.",
            do="go on with what wrap returns: model = ctx.wrap(model)",
        )


class LazyStatistics(DistributedDataParallel):  # type: ignore[misc]
    """DDP that brings rank 0's statistics of BatchNorm to the others when they are read: where one is in evaluation."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # in a tuple: these modules have their places already
        self._norms = (*(module for module in self.module.modules() if isinstance(module, _NormBase)),)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        self.forward_sync_buffers = not all(norm.training for norm in self._norms)
        return super().forward(*inputs, **kwargs)


def is_distributed(model: Any) -> bool:
    """Whether somebody has wrapped or sharded it already."""
    if isinstance(model, DistributedDataParallel):
        return True
    return any(hasattr(module, "_get_fsdp_state") or _is_sharded(module) for module in model.modules())


def unwrapped(model: Any) -> Any:
    ddp = _ddp_of(model)
    return model if ddp is None else ddp.module


def _ddp_of(model: Any) -> Any:
    """The model itself, or what torch.compile's wrapper hides; None where that is no DDP module."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, DistributedDataParallel) else None


def fingerprint(model: Any) -> str:
    """The same for models of the same parameters, whatever their values."""
    return hashlib.sha256(json.dumps(_description(model)).encode()).hexdigest()


def check_same_model(model: Any, place: Place) -> None:
    """Raises on every rank, naming the first parameter or buffer that is not the same on all of them."""
    own = _description(model)
    prints = gather(hashlib.sha256(json.dumps(own).encode()).hexdigest(), place)
    if len(set(prints)) == 1:
        return
    first = from_first(own, place)
    differences = gather(_first_difference(first, own), place)
    rank = next(number for number, found in enumerate(differences) if found)
    raise TopoutError(
        f"Rank {rank} has another model than rank 0: {differences[rank]}.",
        why="Gradients are averaged parameter by parameter, so all ranks must build the same model.",
        do="look for sizes that come from the data or from the rank, such as the number of classes of a rank's shard",
    )


def _description(model: Any) -> list[list[Any]]:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [[name, list(tensor.shape), str(tensor.dtype), bool(tensor.requires_grad)] for name, tensor in tensors]


def _first_difference(first: list[list[Any]], own: list[list[Any]]) -> str | None:
    for theirs, mine in zip(first, own, strict=False):
        if theirs != mine:
            return f"{_said(mine)} instead of {_said(theirs)}"
    if len(own) < len(first):
        return f"{_said(first[len(own)])} is missing"
    return f"{_said(own[len(first)])} is one more" if len(own) > len(first) else None


def _said(entry: list[Any]) -> str:
    name, shape, dtype, requires_grad = entry
    sizes = "x".join(map(str, shape)) or "a number"
    return f"{name} ({sizes}, {dtype.removeprefix('torch.')}{'' if requires_grad else ', no gradient'})"


def _is_sharded(module: Any) -> bool:
    return any(left_out.is_sharded(parameter) for parameter in module.parameters(recurse=False))


def _has_statistics_only(model: Any) -> bool:
    """Whether all buffers are running statistics, which nothing reads while the model trains."""
    of_norms = {
        id(buffer) for module in model.modules() if isinstance(module, _NormBase) for buffer in module.buffers()
    }
    buffers = list(model.buffers())
    trains_with_them = any(
        isinstance(module, _NormBase) and not (module.track_running_stats and module.training)
        for module in model.modules()
    )
    return bool(buffers) and not trains_with_them and all(id(buffer) in of_norms for buffer in buffers)
