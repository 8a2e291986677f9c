"""What a loader cannot do is said when it is made, not in the middle of an epoch."""

import warnings
from collections.abc import Mapping
from typing import Any

from topout.epoch.partition import Partition
from topout.feed.augment import CutMix, ImageTransform, MixUp
from topout.feed.pack_set import PackSet
from topout.feed.position import Position
from topout.feed.staging.stager import StagingOptions
from topout.packs.damage import POLICIES
from topout.schema.errors import ExitCode, TopoutError

DTYPES = ("uint8", "float32", "bfloat16")
DECODERS = ("auto", "host", "device")


def check_options(
    *, dtype: str, on_damage: str, decode: str, stage: Any, device: Any, orders: Mapping[str, Any], shuffle: bool
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
    if not isinstance(stage, (bool, StagingOptions)):
        raise TopoutError(
            f"stage={stage!r} is not known.",
            why="It is True, False, or how much to stage in what pieces.",
            do="stage=True, or stage=StagingOptions(budget_bytes=...) of topout.feed.staging.stager",
        )
    if decode == "device" and device is None:
        raise TopoutError(
            "decode='device' has no device to decode on.",
            why="Without a GPU as device= batches stay on the host.",
            do="add device='cuda', or leave decode out",
        )
    given = [name for name, value in orders.items() if value is not None]
    if len(given) > 1 or (given and not shuffle):
        clash = " and ".join(given if len(given) > 1 else [*given, "shuffle=False"])
        raise TopoutError(
            f"{clash} contradict each other.",
            why="Each says in which order samples come.",
            do="keep one of them",
        )


def cuda_device(device: Any) -> Any:
    """None for the host, whichever way it is said; else a torch.device that is there."""
    if device is None or str(device) == "cpu":
        return None
    import torch

    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise TopoutError(
            f"device={device!r} is no device.", why=str(error).splitlines()[0], do="device='cuda', or leave it out"
        ) from error
    if wanted.type == "cpu":
        return None
    if wanted.type != "cuda":
        why = "The loader feeds GPUs through CUDA alone."
    else:
        num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
        why = f"CUDA shows {num_devices} GPU(s) here." if (wanted.index or 0) >= num_devices else ""
    if why:
        raise TopoutError(
            f"Batches cannot be brought to device={str(wanted)!r}.",
            why=why,
            do="leave device out and move the batches in the script; topout doctor says what this machine has",
            exit_code=ExitCode.ENVIRONMENT,
        )
    return wanted


def check_fits(partition: Partition, packs: PackSet, transform: ImageTransform | None, dtype: str) -> None:
    if partition.num_positions == 0:
        raise TopoutError("The packs are empty.", why="They hold no sample.", do="topout data info PACK")
    if len(partition) == 0 and partition.last == "drop":
        raise TopoutError(
            f"{partition.num_positions} samples do not fill a batch of {partition.batch_size} on "
            f"{partition.world_size} rank(s).",
            why="With last='drop' an epoch would be empty.",
            do="smaller batches, last='pad' to repeat samples, or last='exact' to take what there is",
        )
    mixing = None if transform is None else transform.step(MixUp, CutMix)
    if mixing is not None:
        _check_mixing(mixing, packs, dtype)


def warn_if_nothing_is_left(at: Position, partition: Partition) -> None:
    """A resume can leave less than a batch; a loop over nothing would look like an epoch that was trained."""
    if at.position and not len(partition):
        warnings.warn(
            f"epoch {at.epoch} has no batch left: it goes on at sample {at.position} of {partition.num_positions}, "
            f"and a batch of all ranks takes {partition.global_batch} (last={partition.last!r}). "
            f"This iteration is empty; the next is epoch {at.epoch + 1}.",
            stacklevel=3,
        )


def _check_mixing(step: MixUp | CutMix, packs: PackSet, dtype: str) -> None:
    if isinstance(step, MixUp) and dtype == "uint8":
        raise TopoutError("MixUp cannot blend uint8.", why="Shares of levels are lost.", do="dtype='float32'")
    if not any(field.name == "label" and field.kind == "int" for field in packs.fields):
        raise TopoutError(
            "MixUp and CutMix need labels.", why="The pack has no field 'label' of kind int.", do="leave the step out"
        )
    if packs.classes:
        lowest, highest = 0, len(packs.classes) - 1
    else:
        # from the index; on a device a label that is too large would end the process
        labels = packs.column("label")
        lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= step.num_classes:
        raise TopoutError(
            f"{step} is for labels from 0 to {step.num_classes - 1}.",
            why=f"Labels of the data go from {lowest} to {highest}.",
            do=f"{type(step).__name__}({highest + 1}, ...)" if lowest >= 0 else "leave the step out",
        )
