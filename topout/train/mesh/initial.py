"""The model that every mesh begins with: the one that a single process builds from rank 0's random state.

Ranks build it without memory and compute initial values for their own share (`recording`). A builder that cannot be
recorded is run for real, whole, on each rank's host memory, and that is said. Not for values from a checkpoint, which
are restored afterwards.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from topout.schema.errors import TopoutError
from topout.train.exchange import from_first
from topout.train.mesh.stage import Stage
from topout.train.place import Place

Tensors = dict[str, Any]


class Initial:
    """`model` has no memory; `fill` gives stages cut out of it their values."""

    def __init__(self, model: Any, fill: Callable[[dict[str, list[Any]]], None]) -> None:
        self.model = model
        self._fill = fill

    def fill(self, stages: Sequence[Stage]) -> None:
        """In place, each tensor's own shard."""
        targets: dict[str, list[Any]] = {}
        for stage in stages:
            for name, tensor in (*stage.named(), *stage.named_own_buffers()):
                targets.setdefault(name, []).append(tensor)
        with torch.no_grad():
            self._fill(targets)


def same_random_state(place: Place) -> None:
    """Rank 0's on all ranks: seeded by rank, as scripts do for their data, each would build another model."""
    state = from_first(torch.get_rng_state().tolist() if place.is_first else None, place)
    torch.set_rng_state(torch.tensor(state, dtype=torch.uint8))


def build(build_model: Callable[[], Any], *, says: bool) -> Initial:
    state = torch.get_rng_state()
    try:
        return _recorded(build_model)
    except TopoutError:
        raise
    except Exception as error:  # whatever FakeTensor cannot do
        torch.set_rng_state(state)
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    built = _built(build_model)
    if says:
        sys.stderr.write(
            f"topout: the model is built whole on every rank's host first, since it cannot be built without memory "
            f"({reason[:160]})\n"
        )
    return built


def _built(build_model: Callable[[], Any]) -> Initial:
    model = _checked(build_model())
    values = {name: tensor.detach() for name, tensor in named_tensors(model).items()}
    replace_tensors(
        model, {id(tensor): torch.empty_like(tensor, device="meta") for tensor in named_tensors(model).values()}
    )

    def fill(targets: dict[str, list[Any]]) -> None:
        for name in list(values):
            full = values.pop(name)
            for target in targets.get(name, ()):
                copy_shard(target, full)

    return Initial(model, fill)


def _recorded(build_model: Callable[[], Any]) -> Initial:
    from topout.train.mesh.recording import Recording

    recording = Recording()
    with recording:
        model = build_model()
    _checked(model)
    tensors = named_tensors(model)
    refs = {name: recording.ref(tensor) for name, tensor in tensors.items() if hasattr(tensor, "fake_mode")}
    known = {name: tensor.detach() for name, tensor in tensors.items() if name not in refs}
    replace_tensors(model, {id(t): torch.empty(t.shape, dtype=t.dtype, device="meta") for t in tensors.values()})

    def fill(targets: dict[str, list[Any]]) -> None:
        by_key: dict[int, list[str]] = {}
        for name, ref in refs.items():
            by_key.setdefault(ref.key, []).append(name)

        def done(key: int, tensor_of: Callable[[Any], torch.Tensor]) -> None:
            for name in by_key.get(key, ()):
                for target in targets.get(name, ()):
                    copy_shard(target, tensor_of(refs[name]))

        recording.replay(done)
        for name, full in known.items():
            for target in targets.get(name, ()):
                copy_shard(target, full)

    return Initial(model, fill)


def copy_shard(target: Any, full: torch.Tensor) -> None:
    """This rank's part of a whole tensor into the parameter that holds it."""
    from torch.distributed.tensor import DTensor

    # not public, but what DCP itself slices by; the public distribute_tensor knows no shards of shards
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if not isinstance(target, DTensor):
        target.copy_(full)
        return
    sizes, offsets = compute_local_shape_and_global_offset(full.shape, target.device_mesh, target.placements)
    for dimension, (size, offset) in enumerate(zip(sizes, offsets, strict=True)):
        full = full.narrow(dimension, min(offset, full.shape[dimension]), size)
    target.to_local().copy_(full)


def named_tensors(model: Any) -> Tensors:
    """Parameters and buffers; one that has several names under the first."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def replace_tensors(model: Any, others: dict[int, torch.Tensor]) -> None:
    """Each tensor of the model by another, ties kept."""
    made: dict[int, Any] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                if id(tensor) not in made:
                    other = others[id(tensor)]
                    is_parameter = tensors is module._parameters
                    made[id(tensor)] = nn.Parameter(other, tensor.requires_grad) if is_parameter else other
                tensors[name] = made[id(tensor)]


def _checked(model: Any) -> Any:
    if not isinstance(model, nn.Module):
        raise TopoutError(
            f"build_model returned a {type(model).__name__}.",
            why="It is called on every rank and returns the whole model, an nn.Module.",
            do="pass a function that builds the model and returns it: hybrid(build_model, ...), without brackets",
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise TopoutError(
            "The model has no parameter that requires a gradient.", why="There is nothing to train.", do="unfreeze some"
        )
    return model
