"""A model, a loss and an optimizer made into a trainer over a mesh.

All checks that need no other rank come first and end all ranks alike; then groups are made, and last memory is taken.
Not for models that one device and ordinary data parallelism can train: `ctx.wrap` costs less and changes less.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from topout.schema.errors import TopoutError
from topout.train.agreement import equal_everywhere, together
from topout.train.mesh.axes import Axes, make_axes
from topout.train.mesh.cutting import cut
from topout.train.mesh.initial import Initial, build, named_tensors, same_random_state
from topout.train.mesh.layout import layout_plan
from topout.train.mesh.parts import Part
from topout.train.mesh.pipeline import Pipeline
from topout.train.mesh.sharding import check_shardable, materialise, shard
from topout.train.mesh.spec import MeshSpec, check_world, read_spec
from topout.train.mesh.stage import Stage, cut_out
from topout.train.mesh.trainer import Trainer
from topout.train.place import Place

PRECISIONS = (None, "bf16")


class Parameters(list[Any]):
    """What an optimizer is made of; `named` has (name, parameter) for those who group by name."""

    def __init__(self, named: list[tuple[str, Any]]) -> None:
        super().__init__(parameter for _, parameter in named)
        self.named = named


def hybrid(
    place: Place,
    build_model: Callable[[], Any],
    loss: Callable[[Any, Any], Any],
    optimizer: Callable[[Parameters], torch.optim.Optimizer],
    *,
    mesh: "str | Path | Mapping[str, Any] | MeshSpec",
    clip_norm: float | None = None,
    precision: str | None = None,
    seed: int = 0,
) -> Trainer:
    """All ranks together. `build_model` returns the whole model; `loss(outputs, targets)` is a mean over samples.

    `optimizer` is given this rank's parameters. `clip_norm` bounds the norm of the whole gradient. `precision="bf16"`
    computes under autocast. `seed` orders the samples of `shard`.
    """

    def planned() -> tuple[MeshSpec, Initial, list[list[Part]] | None, dict[str, str]]:
        spec = read_spec(mesh)
        check_world(spec, place.world_size)
        _check_choices(precision, clip_norm)
        initial = build(build_model, says=place.is_first)
        check_shardable(initial.model, spec)
        layout = layout_plan(initial.model, spec)
        return spec, initial, cut(initial.model, spec) if spec.pp > 1 else None, layout

    same_random_state(place)
    spec, initial, parts, layout = together(planned, place)
    equal_everywhere({**spec.facts(), "parameters": _summary(initial.model)}, place, _DIFFERENT)
    if place.is_first:
        _say_of_statistics(initial.model, spec)
    axes = make_axes(spec, place)
    stages = _stages(spec, axes, initial, parts, precision)
    for stage in stages:
        shard(stage, spec, axes, layout)
        materialise(stage, place.device)
    initial.fill(stages)
    _part_random_numbers(spec, axes)
    made = together(lambda: _optimizer(optimizer, stages), place)
    names = {name for name in named_tensors(initial.model) if name in _saved_names(initial.model)}
    trainer = Trainer(
        spec, place, axes, stages=stages, loss=loss, optimizer=made, names=names, clip_norm=clip_norm, seed=seed
    )
    if parts is not None:
        trainer.pipeline = Pipeline(
            spec, axes, stages, trainer.measured, model=initial.model, parts=parts, device=place.device
        )
    return trainer


def _stages(
    spec: MeshSpec, axes: Axes, initial: Initial, parts: list[list[Part]] | None, precision: str | None
) -> list[Stage]:
    if parts is None:
        return [Stage(initial.model, precision=precision)]
    return [
        Stage(cut_out(initial.model, parts[number]), parts[number], precision=precision)
        for number in spec.stages_of(axes.pp_rank)
    ]


def _saved_names(model: Any) -> set[str]:
    """Of parameters and of the buffers that a checkpoint holds."""
    return set(model.state_dict(keep_vars=True))


def _optimizer(make: Callable[[Parameters], torch.optim.Optimizer], stages: list[Stage]) -> torch.optim.Optimizer:
    from torch.distributed.tensor import DTensor

    named = [(name, p) for stage in stages for name, p in stage.named() if p.requires_grad]
    made = make(Parameters(named))
    if not isinstance(made, torch.optim.Optimizer):
        raise TopoutError(
            f"optimizer returned a {type(made).__name__}.",
            why="It is called with this rank's parameters and returns a torch optimizer.",
            do="optimizer=lambda parameters: torch.optim.AdamW(parameters, 3e-4)",
        )
    own = {id(p) for _, p in named}
    if any(id(p) not in own for group in made.param_groups for p in group["params"]):
        raise TopoutError(
            "The optimizer holds parameters that are not this rank's.",
            why="The model is built anew for the mesh, so those of another one would never be trained.",
            do="make it from the parameters that the function is given",
        )
    for group in made.param_groups:
        layouts = {p.device_mesh if isinstance(p, DTensor) else None for p in group["params"]}
        if len(layouts) > 1:
            # one kernel over tensors of different layouts is an error in torch
            group.update({name: False for name in ("foreach", "fused") if group.get(name)})
            if group.get("foreach", False) is None:
                group["foreach"] = False
    return made


def _part_random_numbers(spec: MeshSpec, axes: Axes) -> None:
    """Rows and stages draw numbers of their own; ranks of one layer the same, for their dropout must be the same."""
    if spec.num_ranks > 1:
        first = int(torch.randint(2**62, ()))
        torch.manual_seed((first + 1_000_003 * (axes.rows.rank * spec.pp + axes.pp_rank)) % 2**63)


def _check_choices(precision: str | None, clip_norm: float | None) -> None:
    if precision not in PRECISIONS:
        raise TopoutError(
            f"precision={precision!r} is no precision of a mesh.",
            why="It is None, as the model is, or 'bf16', under autocast.",
            do="leave it out, or pass 'bf16'",
        )
    if clip_norm is not None and not clip_norm > 0:
        raise TopoutError(
            f"clip_norm={clip_norm!r} is no norm.", why="Gradients are scaled down to it.", do="pass for instance 1.0"
        )


def _say_of_statistics(model: Any, spec: MeshSpec) -> None:
    name = next((name for name, module in model.named_modules() if isinstance(module, _BatchNorm)), None)
    if name is not None and spec.num_rows * spec.num_microbatches > 1:
        sys.stderr.write(
            f"topout: {name} is a BatchNorm: its statistics are those of one rank's microbatch, so losses differ from "
            "one process by nature; GroupNorm has none\n"
        )


def _summary(model: Any) -> str:
    count = sum(p.numel() for p in model.parameters())
    return f"{len(list(model.parameters()))} tensors of {count} numbers"


_DIFFERENT = (
    "every rank must have the same mesh and build the same model, or they would wait for one another for ever",
    "give all ranks the same mesh file, and let build_model not look at the rank",
)
