"""One statement of how to train at a batch: optimizer, rate by rule, warm-up and decay.

Not a search: what it computes follows from the base rate, which somebody has found good at the base batch.
"""

import inspect
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from topout.schema.config_file import Kind, read_table
from topout.schema.errors import TopoutError
from topout.train.optim.batch_rule import BatchRule, refusal, unknown
from topout.train.optim.lamb import LAMB
from topout.train.optim.lars import LARS
from topout.train.optim.schedule import Schedule

OPTIMIZERS: Mapping[str, Any] = {"lars": LARS, "lamb": LAMB, "sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
_NUMBER: tuple[Kind, ...] = (int, float)
_KEYS: dict[str, tuple[Kind, ...]] = {
    "optimizer": (str,), "batch": (int,), "rule": (str,), "base_batch": (int,), "base_rate": _NUMBER,
    "samples": (int,), "epochs": _NUMBER, "drop_last": (bool,), "warmup_epochs": _NUMBER, "decay": (str,),
    "power": _NUMBER,
}  # fmt: skip
_OPTIONS: dict[str, tuple[Kind, ...]] = {
    "weight_decay": _NUMBER, "momentum": _NUMBER, "trust": _NUMBER, "eps": _NUMBER, "momentum_form": (str,),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LargeBatch:
    """`options` go to the optimizer; `milestones` (epochs) belong to the decay `step`."""

    batch: int
    base: tuple[int, float]
    samples: int
    epochs: float
    drop_last: bool = False
    """As the loader's: samples that do not fill a batch are left out; else they are a step of their own."""
    optimizer_name: str = "lars"
    rule: str = "sqrt"
    warmup_epochs: float = 0.0
    decay: str = "cosine"
    power: float = 2.0
    milestones: tuple[float, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.optimizer_name not in OPTIMIZERS:
            raise unknown("optimizer", self.optimizer_name, tuple(OPTIMIZERS))
        for name in self.options:
            if name not in (known := option_names(self.optimizer_name)):
                raise unknown(f"option of {self.optimizer_name}", name, known)
        for name, value in (("epochs", self.epochs), ("warm-up", self.warmup_epochs)):
            if not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
                raise refusal(name, value, "a number of epochs from 0 on")
        _ = self.rate, self.course  # refuses what is wrong now, not at the first step

    @property
    def rate(self) -> float:
        return BatchRule(batch=self.batch, rule=self.rule, base=self.base).rate

    @property
    def steps_per_epoch(self) -> int:
        """As many as the loader makes: the schedule ends at rate 0, and steps beyond it would learn nothing."""
        if self.samples < self.batch:
            raise TopoutError(
                f"A batch of {self.batch} is larger than the data set of {self.samples} samples.",
                why="The rate is that of a whole batch, and there would be none.",
                do="take a smaller batch, or give the number of samples of the whole training set",
            )
        return self.samples // self.batch if self.drop_last else math.ceil(self.samples / self.batch)

    @property
    def course(self) -> Schedule:
        return Schedule(
            steps=round(self.epochs * self.steps_per_epoch),
            warmup_steps=int(self.warmup_epochs * self.steps_per_epoch),
            decay=self.decay,
            power=self.power,
            milestones=tuple(round(epoch * self.steps_per_epoch) for epoch in self.milestones),
        )

    def optimizer(self, params: Iterable[Any]) -> Any:
        """At its full rate; `model.named_parameters()` gives errors that name parameters."""
        defaults = {"momentum": 0.9} if self.optimizer_name == "sgd" else {}
        return OPTIMIZERS[self.optimizer_name](params, lr=self.rate, **{**defaults, **self.options})

    def schedule(self, optimizer: Any) -> Any:
        """An ordinary LRScheduler: `.step()` it after each optimizer step."""
        return self.course.scheduler(optimizer)

    def __str__(self) -> str:
        course, (batch, rate) = self.course, self.base
        return (
            f"{self.optimizer_name}, batch {self.batch:,}: rate {self.rate:.4g} ({self.rule} rule from {rate:g} "
            f"at {batch:,}), {course.warmup_steps} steps of warm-up in {course.steps} ({self._epoch()}), "
            f"{self.decay} decay"
        )

    def _epoch(self) -> str:
        rest = self.samples % self.batch
        left = f", {rest:,} samples left out" if self.drop_last else f", the last of {rest:,} samples"
        return f"{self.steps_per_epoch:,} an epoch{left if rest else ''}"


def option_names(optimizer_name: str) -> tuple[str, ...]:
    """What the optimizer takes beside parameters and rate."""
    names = inspect.signature(OPTIMIZERS[optimizer_name]).parameters
    return tuple(name for name in names if name not in ("params", "lr"))


def from_toml(path: Path) -> LargeBatch:
    """From the table `[batch]`; other tables of the file belong to others."""
    try:
        tables = tuple(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        tables = ()  # read_table says what is wrong with it
    found = {key: value for key, (value, _) in read_table(path, "batch", _KEYS | _OPTIONS, other_tables=tables).items()}
    needed = ("batch", "base_batch", "base_rate", "samples", "epochs")
    missing = [key for key in needed if key not in found]
    if missing:
        raise TopoutError(
            f"{path}: [batch] has no {', '.join(missing)}.",
            why="The rate and the number of steps are computed from them.",
            do=f"write {missing[0]} = ... under [batch]",
        )
    if found.get("decay") == "step":
        raise TopoutError(
            f'{path}: [batch] has decay = "step", and a file cannot say when its steps are.',
            why="They are a list of epochs.",
            do='in the script: topout.large_batch(decay="step", milestones=(30, 60, 80), …); or another decay',
        )
    options = {key: found.pop(key) for key in _OPTIONS if key in found}
    base = found.pop("base_batch"), float(found.pop("base_rate"))
    return LargeBatch(base=base, optimizer_name=found.pop("optimizer", "lars"), options=options, **found)
