"""Layout rules: which layers are split over the tp dimension, and how.

    "columns"          the layer's outputs are split: query, key, value, up; an embedding's width
    "rows"             its inputs are split, and what ranks computed is summed: out, down; an embedding's vocabulary
    "columns+gather"   outputs are split and then brought together: a head whose loss wants all classes

A rule names modules, * standing for one part of a name; the first that matches wins. Not for convolutions: DTensor
computes channel-sharded ones wrongly, without a word, in torch 2.13.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from topout.schema.errors import TopoutError
from topout.train.mesh.spec import MeshSpec

_HEADS = ("num_heads", "n_heads", "n_head", "num_attention_heads", "num_kv_heads", "n_kv_heads", "num_key_value_heads")
_CONVOLUTIONS = (nn.modules.conv._ConvNd,)


def layout_plan(model: Any, spec: MeshSpec) -> dict[str, str]:
    """Style by module name; every rule is checked also where tp is 1, so that one file serves all meshes."""
    modules = {name: module for name, module in model.named_modules() if name}
    plan: dict[str, str] = {}
    for pattern, style in spec.layout:
        matched = [name for name in modules if matches(name, pattern)]
        if not matched:
            raise _matches_nothing(spec, pattern, list(modules))
        for name in matched:
            _check_kind(spec, pattern, name, modules[name])
            plan.setdefault(name, style)
    if spec.tp > 1 and not plan:
        raise TopoutError(
            f"{spec.name}: tp = {spec.tp}, and no layout rule says what to split.",
            why="Without one, all ranks of the tp dimension would compute the same.",
            do='write [layout] with for instance "blocks.*.mlp.up" = "columns" and "blocks.*.mlp.down" = "rows"',
        )
    if spec.tp > 1:
        for name, style in plan.items():
            _check_divides(spec, name, modules[name], style)
        _check_ties(spec, model, plan)
        _check_heads(spec, modules, plan)
    return plan


def matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def parallel_style(module: Any, style: str) -> Any:
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    is_embedding = isinstance(module, nn.Embedding)
    if style == "rows":
        return RowwiseParallel(input_layouts=Replicate()) if is_embedding else RowwiseParallel()
    # the width of an embedding is what everything after it takes whole
    gathers = style == "columns+gather" or is_embedding
    return ColwiseParallel(output_layouts=Replicate()) if gathers else ColwiseParallel()


def divide_heads(model: Any, plan: dict[str, str], tp: int) -> None:
    """A module whose query is split has so many fewer heads; code that asks it how many then reshapes rightly."""
    for name in sorted({name.rpartition(".")[0] for name, style in plan.items() if style == "columns"}):
        parent = model.get_submodule(name)
        for attribute in _heads(parent):
            setattr(parent, attribute, getattr(parent, attribute) // tp)


def _heads(module: Any) -> list[str]:
    return [name for name in _HEADS if type(vars(module).get(name)) is int]


def _check_heads(spec: MeshSpec, modules: dict[str, Any], plan: dict[str, str]) -> None:
    for name, style in plan.items():
        parent = modules.get(name.rpartition(".")[0])
        for attribute in [] if parent is None or style != "columns" else _heads(parent):
            if getattr(parent, attribute) % spec.tp:
                raise TopoutError(
                    f"{name.rpartition('.')[0]}.{attribute} is {getattr(parent, attribute)}, which tp = {spec.tp} does "
                    "not divide.",
                    why="Each rank of the tp dimension computes whole heads.",
                    do=f"a tp that divides {getattr(parent, attribute)}, or another number of heads",
                )


def _check_kind(spec: MeshSpec, pattern: str, name: str, module: Any) -> None:
    if isinstance(module, nn.Linear) or (isinstance(module, nn.Embedding) and module.max_norm is None):
        return
    why = "Only nn.Linear and nn.Embedding can be split over ranks."
    do = f"take {name} out of the rule"
    if isinstance(module, _CONVOLUTIONS):
        why = "DTensor computes a convolution with split channels wrongly in torch 2.13, without an error."
        do = "leave convolutions whole: fsdp shards their memory, and pp deals them out"
    elif isinstance(module, nn.MultiheadAttention):
        why = "Its query, key and value are one packed tensor, and splitting that mixes them."
        do = "write attention with separate query, key, value and out linears"
    elif isinstance(module, nn.Embedding):
        why = "With max_norm, an embedding changes its weights while it reads them."
    elif next(module.children(), None) is not None:
        inside = [child for child, part in module.named_modules() if isinstance(part, nn.Linear | nn.Embedding)]
        do = f"name layers in it, for instance {name}.{inside[0]}" if inside else do
    raise TopoutError(
        f"{spec.name}: the layout rule {pattern!r} matches {name}, a {type(module).__name__}.", why=why, do=do
    )


def _check_divides(spec: MeshSpec, name: str, module: Any, style: str) -> None:
    if isinstance(module, nn.Linear):
        what, size = ("inputs", module.in_features) if style == "rows" else ("outputs", module.out_features)
    else:
        what, size = ("rows", module.num_embeddings) if style == "rows" else ("columns", module.embedding_dim)
    if size % spec.tp:
        raise TopoutError(
            f"{name} has {size} {what}, which tp = {spec.tp} does not divide.",
            why="Each rank of the tp dimension takes an equal part.",
            do=f"make it {-(-size // spec.tp) * spec.tp}, take the layer out of [layout], or choose another tp",
        )


def _check_ties(spec: MeshSpec, model: Any, plan: dict[str, str]) -> None:
    for first, second in tied_names(model):
        split = [name for name in (first, second) if name.rpartition(".")[0] in plan]
        if split:
            raise TopoutError(
                f"{first} and {second} are one parameter, and the layout splits {split[0].rpartition('.')[0]}.",
                why="Each layer keeps its own shards, so the two would no longer be one.",
                do="take both out of [layout], or give each a weight of its own",
            )


def tied_names(model: Any) -> list[tuple[str, str]]:
    """Names of parameters that are one, the first name with each later one."""
    first: dict[int, str] = {}
    pairs = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        known = first.setdefault(id(parameter), name)
        if known != name:
            pairs.append((known, name))
    return pairs


def _matches_nothing(spec: MeshSpec, pattern: str, names: Sequence[str]) -> TopoutError:
    # numbers of layers say nothing about what was meant
    generic = {".".join("*" if part.isdigit() else part for part in name.split(".")): name for name in names}
    near = get_close_matches(pattern, list(generic), n=3, cutoff=0.4)
    return TopoutError(
        f"{spec.name}: the layout rule {pattern!r} matches no module.",
        why=f"Nearest are {', '.join(near)}." if near else f"The model has {', '.join(list(generic)[:8])}.",
        do=f"did you mean {near[0]!r}?" if near else "name modules as model.named_modules() does",
    )
