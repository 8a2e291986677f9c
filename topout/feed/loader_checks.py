"""What a loader cannot do is said when it is made, not in the middle of an epoch."""

from collections.abc import Mapping, Sequence
from typing import Any

from topout.feed.augment import CutMix, ImageTransform, MixUp
from topout.feed.partition import Partition
from topout.packs.damage import POLICIES
from topout.packs.fields import Field
from topout.schema.errors import TopoutError

DTYPES = ("uint8", "float32", "bfloat16")
DECODERS = ("auto", "host", "device")


def check_options(
    *,
    dtype: str,
    on_damage: str,
    decode: str,
    prefetch: int,
    num_threads: int | None,
    orders: Mapping[str, Any],
    shuffle: bool,
) -> None:
    for name, value, allowed in (
        ("dtype", dtype, DTYPES), ("on_damage", on_damage, POLICIES), ("decode", decode, DECODERS),
    ):  # fmt: skip
        if value not in allowed:
            raise TopoutError(
                f"{name}={value!r} is not known.",
                why=f"It is one of {', '.join(allowed)}.",
                do=f"{name}={allowed[0]!r}",
            )
    for name, number in (("prefetch", prefetch), ("num_threads", num_threads)):
        if number is not None and number < 1:
            raise TopoutError(f"{name}={number} gives no batch.", why="At least one is needed.", do=f"{name}=1 or more")
    given = [name for name, value in orders.items() if value is not None]
    if len(given) > 1 or (given and not shuffle and given != ["curriculum"]):
        clash = " and ".join(given if len(given) > 1 else [*given, "shuffle=False"])
        raise TopoutError(
            f"{clash} contradict each other.",
            why="Each says in which order samples come.",
            do="keep one of them",
        )


def image_field(fields: Sequence[Field], transform: ImageTransform | None, wanted: str | None) -> str | None:
    """The field that `transform` is for; None without a transform."""
    if transform is None:
        return None
    images = [field.name for field in fields if field.is_image]
    possible = [field.name for field in fields if field.is_image or field.kind == "bytes"]
    if wanted is not None:
        if wanted not in possible:
            raise TopoutError(
                f"{wanted!r} is no field of images.", why=f"Such are: {', '.join(possible) or 'none'}.", do="name one"
            )
        return wanted
    if len(images) != 1 and not (not images and len(possible) == 1):
        raise TopoutError(
            "It is not clear which field the transform is for.",
            why=f"The pack has {', '.join(field.name + ' (' + field.kind + ')' for field in fields)}.",
            do="say image='name of the field', or leave the transform out",
        )
    return (images or possible)[0]


def check_fits(partition: Partition, fields: Sequence[Field], transform: ImageTransform | None, dtype: str) -> None:
    if partition.num_positions == 0:
        raise TopoutError("The packs are empty.", why="They hold no sample.", do="topout data info PACK")
    if len(partition) == 0 and partition.last == "drop":
        raise TopoutError(
            f"{partition.num_positions} samples do not fill a batch of {partition.batch_size} on "
            f"{partition.world_size} rank(s).",
            why="With last='drop' an epoch would be empty.",
            do="smaller batches, last='pad' to repeat samples, or last='exact' to take what there is",
        )
    if transform is None or not transform.step(MixUp, CutMix):
        return
    if transform.step(MixUp) and dtype == "uint8":
        raise TopoutError("MixUp cannot blend uint8.", why="Shares of levels are lost.", do="dtype='float32'")
    if not any(field.name == "label" and field.kind == "int" for field in fields):
        raise TopoutError(
            "MixUp and CutMix need labels.", why="The pack has no field 'label' of kind int.", do="leave the step out"
        )
