"""A stage's parameters split as the mesh says: layers over tp by DTensor, everything over fsdp by FSDP2.

Sharding comes before memory: a stage without values is split first, then each rank allocates its own share alone. Not
for models with parameters under two names: allocating and sharding see each name for itself.
"""

from typing import Any

import torch
from torch import nn

from topout.schema.errors import TopoutError
from topout.train.mesh.axes import Axes
from topout.train.mesh.layout import divide_heads, parallel_style, tied_names
from topout.train.mesh.spec import MeshSpec
from topout.train.mesh.stage import Stage


def check_shardable(model: Any, spec: MeshSpec) -> None:
    """Before anything is cut, on all ranks alike."""
    ties = tied_names(model)
    if spec.fsdp > 1 and ties:
        raise TopoutError(
            f"{ties[0][0]} and {ties[0][1]} are one parameter, and fsdp = {spec.fsdp} shards each module by itself.",
            why="The two would be sharded and trained apart.",
            do="give each a weight of its own, or set fsdp = 1 and use dp",
        )
    for name, module in model.named_modules():
        if (
            spec.num_ranks > 1
            and getattr(module, "sparse", False)
            and isinstance(module, nn.Embedding | nn.EmbeddingBag)
        ):
            raise TopoutError(
                f"{name} has sparse gradients.",
                why="They can neither be sharded nor averaged in one piece with the others.",
                do=f"make {name} with sparse=False",
            )


def shard(stage: Stage, spec: MeshSpec, axes: Axes, layout: dict[str, str]) -> None:
    """In place; the stage has no memory yet."""
    if spec.tp > 1:
        _split_layers(stage, spec, axes, layout)
    if spec.fsdp > 1:
        _shard_parameters(stage, spec, axes)


def materialise(stage: Stage, device: torch.device) -> None:
    """Memory for this rank's share; what has two names keeps both."""
    ties = tied_names(stage)
    stage.to_empty(device=device)
    for first, second in ties:
        owner, _, name = second.rpartition(".")
        stage.get_submodule(owner)._parameters[name] = stage.get_parameter(first)


def _split_layers(stage: Stage, spec: MeshSpec, axes: Axes, layout: dict[str, str]) -> None:
    from torch.distributed.tensor.parallel import parallelize_module

    modules = dict(stage.model.named_modules())
    own = {name: style for name, style in layout.items() if name in modules and _has_weight(modules[name])}
    for name, style in own.items():
        parallelize_module(modules[name], axes.mesh["tp"], parallel_style(modules[name], style))
    divide_heads(stage.model, own, spec.tp)


def _has_weight(module: Any) -> bool:
    return getattr(module, "weight", None) is not None


def _shard_parameters(stage: Stage, spec: MeshSpec, axes: Axes) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    options: dict[str, Any] = {
        "mesh": axes.mesh["dp", "fsdp"] if spec.dp > 1 else axes.mesh["fsdp"],
        # gathered once for all microbatches of a pipeline; else freed between forward and backward
        "reshard_after_forward": spec.pp == 1,
    }
    if stage.precision == "bf16":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in _units(stage):
        fully_shard(module, **options)
    fully_shard(stage, **options)


def _units(stage: Stage) -> list[Any]:
    """What is gathered together: the parts, or where there are none, the elements of the model's lists of modules."""
    if stage.parts is not None:
        found: list[Any] = [part.run(stage.model) for part in stage.parts if part.kind == "module"]
    else:
        lists = [module for module in stage.model.modules() if isinstance(module, nn.ModuleList | nn.Sequential)]
        inner = {id(part) for module in lists for part in module.modules() if part is not module}
        found = [part for module in lists if id(module) not in inner for part in module]
    unique = {id(module): module for module in found}.values()
    return [module for module in unique if any(True for _ in module.parameters())]
