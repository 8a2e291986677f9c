"""`topout.large_batch`: optimizer, rate and schedule of a batch in one statement; LARS and LAMB by themselves.

    plan = topout.large_batch(batch=4096, rule="sqrt", base=(64, 0.1), samples=60_000, epochs=5, warmup_epochs=1.5)
    optimizer = plan.optimizer(model.named_parameters())
    schedule = plan.schedule(optimizer)

Not a search for the base rate: it is the rate that was good at the base batch.
"""

from os import PathLike
from pathlib import Path
from typing import Any

from topout.train.optim.batch_rule import BatchRule
from topout.train.optim.lamb import LAMB
from topout.train.optim.large_batch import LargeBatch, from_toml
from topout.train.optim.lars import LARS
from topout.train.optim.schedule import Schedule
from topout.train.probe import probe_batch

__all__ = ["LAMB", "LARS", "BatchRule", "LargeBatch", "Schedule", "large_batch", "large_batch_from", "probe_batch"]


def large_batch(
    *,
    batch: int,
    base: tuple[int, float],
    samples: int,
    epochs: float,
    drop_last: bool = False,
    optimizer: str = "lars",
    rule: str = "sqrt",
    warmup_epochs: float = 0.0,
    decay: str = "cosine",
    power: float = 2.0,
    milestones: tuple[float, ...] = (),
    **options: Any,
) -> LargeBatch:
    """`batch` counts samples of all ranks in one step; `options` (weight_decay, trust, betas) go to the optimizer.

    `drop_last` is the loader's: whether an epoch leaves out the samples that do not fill a batch.
    """
    return LargeBatch(
        batch=batch,
        base=base,
        samples=samples,
        epochs=epochs,
        drop_last=drop_last,
        optimizer_name=optimizer,
        rule=rule,
        warmup_epochs=warmup_epochs,
        decay=decay,
        power=power,
        milestones=milestones,
        options=options,
    )


def large_batch_from(path: str | PathLike[str]) -> LargeBatch:
    """The same from the table `[batch]` of a TOML file."""
    return from_toml(Path(path))
