"""Errors of `topout run --ddp` that name the script's line. Not for those that one call alone raises."""

from topout.schema.errors import TopoutError
from topout.train.parallelise.lines import script_line


def not_dealt_out(made_at: str) -> TopoutError:
    return TopoutError(
        f"backward at {script_line()} trains on a batch of the DataLoader at {made_at}, which is not dealt out.",
        why="it does not shuffle and model.train() was not called, or its data set is iterable: every rank "
        "would train on the same samples",
        do="shuffle=True with a data set that has __getitem__, or topout run -n 1",
    )


def no_loader() -> TopoutError:
    return TopoutError(
        f"backward at {script_line()} trains on data that came from no DataLoader.",
        why="--ddp deals out the samples of DataLoaders; every rank would train on the same data",
        do="feed the loop from torch.utils.data.DataLoader, or topout run -n 1",
    )


def no_optimizer() -> TopoutError:
    return TopoutError(
        f"backward at {script_line()} computes gradients, and there is no optimizer of torch's to average them for.",
        why="a loop that updates parameters by itself would give each rank a model of its own",
        do="update with torch.optim, or topout run -n 1",
    )


def shared_memory() -> TopoutError:
    return TopoutError(
        f"{script_line()} shares a model's memory with processes that the script starts.",
        why="--ddp deals out batches and averages gradients in the rank's own process; every rank's processes would "
        "train on the same samples, each model by itself",
        do="train in the process that the script began in, or topout run -n 1",
    )


def other_seed(rank: int) -> TopoutError:
    return TopoutError(
        f"At {script_line()} rank {rank} has another seed of torch's random numbers than rank 0.",
        why="frozen layers, buffers and splits that were drawn with it are other ones on each rank",
        do="torch.manual_seed(0), or another number that comes from neither a clock nor the process",
    )


def other_parameters(where: str, rank: int) -> TopoutError:
    return TopoutError(
        f"{where} rank {rank} has other parameters than rank 0.",
        why="something depends on the rank's own batches, such as a learning rate or a skipped step, or on random "
        "numbers drawn after the first batch: layers initialised again, noise on weights or gradients",
        do="make it depend on what is equal on all ranks, such as a torch.Generator with a seed of its own, or "
        "topout run -n 1",
    )
