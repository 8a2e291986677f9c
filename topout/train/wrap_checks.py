"""What `wrap` refuses: choices that do not exist or differ between ranks, an optimizer of another model."""

from typing import Any

from topout.schema.errors import TopoutError
from topout.train.compression import CODECS
from topout.train.exchange import gather
from topout.train.fused import has_sparse_gradients
from topout.train.place import Place

BUCKETS = ("auto", "default")


def check_choices(model: Any, buckets: str | float, compress: str | None) -> None:
    is_limit = isinstance(buckets, (int, float)) and not isinstance(buckets, bool) and buckets > 0
    if buckets not in BUCKETS and not is_limit:
        raise TopoutError(
            f"buckets={buckets!r} is no way to group gradients.",
            why="It is one of " + ", ".join(map(repr, BUCKETS)) + ", or a limit in MiB.",
            do="leave it out: what is quickest on this job's link is then measured",
        )
    if compress not in (None, "auto", *CODECS):
        raise TopoutError(
            f"compress={compress!r} is no compression.",
            why="It is one of " + ", ".join(map(repr, ("auto", *CODECS))) + ", or None.",
            do="leave it out to average gradients as they are",
        )
    if compress == "auto" and buckets != "auto":
        raise TopoutError(
            f"compress='auto' and buckets={buckets!r} exclude each other.",
            why="What is measured is groups of gradients, with and without compression.",
            do="leave out buckets, or name the compression, such as compress='bf16'",
        )
    if compress is not None and has_sparse_gradients(model):
        raise TopoutError(
            f"compress={compress!r} cannot be had here.",
            why="The model has sparse gradients.",
            do="leave it out to average gradients as they are",
        )


def check_optimizer(model: Any, optimizer: Any) -> None:
    """Of another model, it would train nothing: the commonest way is a model copied or moved after it was made."""
    own = {id(parameter) for parameter in model.parameters()}
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if held and not any(id(parameter) in own for parameter in held):
        raise TopoutError(
            "The optimizer holds no parameter of this model.",
            why="It was made for another model, or the model's parameters were replaced afterwards.",
            do="make the optimizer from model.parameters() right before wrap",
        )


def check_same_choices(place: Place, **choices: Any) -> None:
    """Ranks that average in different ways would wait for each other's next collective, or mix them up."""
    told = gather({name: repr(value) for name, value in choices.items()}, place)
    for rank, theirs in enumerate(told):
        for name, value in theirs.items():
            if value != told[0][name]:
                raise TopoutError(
                    f"Rank {rank} calls wrap with {name}={value}, rank 0 with {name}={told[0][name]}.",
                    why="How gradients are averaged is the same on all ranks, or they wait for each other for ever.",
                    do="give all ranks the same options; look for one that comes from a variable of one host",
                )
