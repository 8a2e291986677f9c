"""Where a sequence of parts is cut into stages: as declared, or so that the heaviest stage is lightest.

By parameters, as memory goes. Compute may be spread otherwise (an embedding is all memory, attention over long
sequences all compute): then say where to cut.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from topout.schema.errors import TopoutError
from topout.train.mesh.layout import tied_names
from topout.train.mesh.parts import Part, parts_of
from topout.train.mesh.spec import MeshSpec


def cut(model: Any, spec: MeshSpec) -> list[list[Part]]:
    """The parts of each stage."""
    parts = parts_of(model)
    weights = [sum(p.numel() for name, p in model.named_parameters() if part.has(name)) for part in parts]
    starts = _declared(spec, parts) if spec.cut_before else _even(spec, weights)
    ends = [*starts[1:], len(parts)]
    stages = [parts[start:end] for start, end in zip(starts, ends, strict=True)]
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if not sum(weights[start:end]):
            raise TopoutError(
                f"Stage {number} of {len(stages)} has no parameters: {', '.join(p.name for p in stages[number])}.",
                why="It would train nothing and only hand activations on.",
                do="cut elsewhere, or take a smaller pp",
            )
    _check_apart(model, stages)
    return stages


def _declared(spec: MeshSpec, parts: Sequence[Part]) -> list[int]:
    names = [part.name for part in parts]
    starts = [0]
    for name in spec.cut_before:
        if name not in names:
            near = get_close_matches(name, names, n=3)
            raise TopoutError(
                f"{spec.name}: cut_before names {name!r}, which is no part of the model.",
                why=f"Nearest are {', '.join(near)}." if near else f"Its parts are {', '.join(names)}.",
                do=f"did you mean {near[0]!r}?" if near else "name one of them",
            )
        if names.index(name) <= starts[-1]:
            raise TopoutError(
                f"{spec.name}: cut_before names {name!r} where no part is left before it.",
                why=f"Cuts stand in the order of the parts: {', '.join(names)}.",
                do="order them so, each once, and never before the first part",
            )
        starts.append(names.index(name))
    return starts


def _even(spec: MeshSpec, weights: Sequence[int]) -> list[int]:
    """Contiguous stages, each with parameters, whose largest is as small as can be."""
    num_stages, num_parts = spec.num_stages, len(weights)
    with_parameters = sum(weight > 0 for weight in weights)
    if with_parameters < num_stages:
        each = f" ({spec.stages_per_rank} on each rank with {spec.schedule})" if spec.stages_per_rank > 1 else ""
        raise TopoutError(
            f"The model has {with_parameters} parts with parameters, too few for {num_stages} stages{each}.",
            why="Every stage needs one at least.",
            do="a smaller pp, or a sequence() of more and smaller parts",
        )
    sums = [0]
    for weight in weights:
        sums.append(sums[-1] + weight)
    # best[k][end]: the heaviest of k stages that end there, and where the last of them starts
    never = sums[-1] + 1
    best = [[(never, 0)] * (num_parts + 1) for _ in range(num_stages + 1)]
    best[0][0] = (0, 0)
    for k in range(1, num_stages + 1):
        for end in range(k, num_parts + 1):
            best[k][end] = min(
                ((max(best[k - 1][start][0], sums[end] - sums[start]), start)
                 for start in range(k - 1, end) if sums[end] > sums[start]),
                default=(never, 0),
            )  # fmt: skip
    starts, end = [], num_parts
    for k in range(num_stages, 0, -1):
        end = best[k][end][1]
        starts.append(end)
    return starts[::-1]


def _check_apart(model: Any, stages: Sequence[Sequence[Part]]) -> None:
    """No parameter is needed on two stages."""

    def stages_with(name: str) -> set[int]:
        return {number for number, parts in enumerate(stages) if any(part.has(name) for part in parts)}

    for first, second in tied_names(model):
        apart = stages_with(first) | stages_with(second)
        if len(apart) > 1:
            raise _shared(f"{first} and {second} are one parameter", apart)
    for name, _ in model.named_parameters():
        apart = stages_with(name)
        if len(apart) > 1:
            raise _shared(f"{name} is used by several parts", apart)


def _shared(what: str, apart: set[int]) -> TopoutError:
    return TopoutError(
        f"{what}, and the cut puts it on stages {' and '.join(map(str, sorted(apart)))}.",
        why="Each stage would train a copy of its own, and the copies would drift apart.",
        do="give each use a weight of its own, cut so that both are on one stage, or set pp = 1",
    )
