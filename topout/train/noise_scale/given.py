"""What a noise scale needs to be told, checked before training: who is missing a second gradient hears it at once."""

from typing import Any

from topout.schema.errors import TopoutError
from topout.train.noise_scale.own_gradients import num_split_over

FEWEST_IN_WINDOW = 8


def size_of_batch(batch_size: int | None, loader: Any) -> int:
    """Samples of one backward on this rank."""
    found = getattr(loader, "batch_size", None) if batch_size is None else batch_size
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise TopoutError(
            f"The noise scale needs to know the batch size, and {found!r} is none.",
            why="It is counted in samples; the loader has no batch_size of its own, or none was given.",
            do="pass batch_size=: samples of one backward on one rank, a micro-batch where gradients accumulate",
        )
    return found


def check_given(model: Any, accumulate: int | None, every: int, window: int, num_data_ranks: int) -> None:
    meanings = {
        "every": (every, 1, "One step in so many is looked at."),
        "window": (window, FEWEST_IN_WINDOW, "So many looks are averaged; of fewer, nothing can be said."),
        "accumulate": (1 if accumulate is None else accumulate, 1, "It is how many backwards a step has."),
    }
    for name, (value, least, why) in meanings.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise TopoutError(
                f"The noise scale has no {name}={value!r}.", why=why, do=f"{name}: a whole number from {least} on"
            )
    if num_data_ranks * (accumulate or 1) < 2:
        raise TopoutError(
            "The noise scale has one gradient a step here: one rank, and no accumulation.",
            why="It compares gradients of the same weights on different samples; a second one is missing.",
            do="start a second rank, or accumulate: two micro-batches or more a step, and pass accumulate=2",
        )
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise TopoutError(
            "The noise scale does not see gradients under FullyShardedDataParallel.",
            why="That class, FSDP1, flattens parameters and reduces their gradients where no hook comes first.",
            do="shard with torch.distributed.fsdp.fully_shard (FSDP2)",
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise TopoutError(
            "The model has no parameter that learns, so there is no gradient to measure.",
            why="All of them have requires_grad=False.",
            do="make the noise scale for the model that trains",
        )


def check_peers(model: Any, num_ranks: int, num_data_ranks: int) -> None:
    """Ranks that share a layer compute one gradient between them, and must be known to see the same samples."""
    if not isinstance(num_data_ranks, int) or num_data_ranks < 1 or num_ranks % num_data_ranks:
        raise TopoutError(
            f"The noise scale has no num_data_ranks={num_data_ranks!r} in a world of {num_ranks}.",
            why="It is how many ranks see different samples; each has equally many peers that see the same.",
            do=f"num_data_ranks: a divisor of {num_ranks}",
        )
    num_split = num_split_over(model)
    if num_split > num_ranks // num_data_ranks:
        raise TopoutError(
            f"The model has layers split over {num_split} ranks, and num_data_ranks={num_data_ranks} of {num_ranks}.",
            why="Ranks that share a layer see the same samples, so fewer see different ones.",
            do=f"NoiseScale(..., num_data_ranks={max(num_ranks // num_split, 1)})",
        )
    # DDP with device_mesh= holds parts of DTensors as plain tensors
    if any(hasattr(parameter, "_st_info") for parameter in model.parameters()):
        raise TopoutError(
            "The noise scale cannot tell what is split under DistributedDataParallel with device_mesh=.",
            why="It holds parts of layers as plain tensors, which look like whole ones.",
            do="shard with torch.distributed.fsdp.fully_shard over the data ranks, or average gradients by hand",
        )


def check_scaler(scaler: Any, averages_in_backward: bool) -> None:
    if scaler is not None and scaler.is_enabled() and not averages_in_backward:
        raise TopoutError(
            "The noise scale does not know how far gradients are scaled when they are averaged by hand.",
            why="It sees the average when the optimizer steps, and the scaler has divided by its scale before.",
            do="pass the DistributedDataParallel module itself as the model, where there is one",
        )
