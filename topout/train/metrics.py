"""What an evaluation step says of its batch by name, and how the batches of all ranks become one figure.

    number or tensor      summed over batches
    mean(value, count)    the mean of all samples, each batch with its weight
    per_sample(values)    all of them, in the order of the data

Values are added in the order of the batches, in double precision (whole numbers exactly), wherever they were computed:
the sum is then the one that a loop in one process makes. Not for a metric that is no sum; gather what it needs with
`per_sample` and compute it of the whole.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from topout.schema.errors import TopoutError
from topout.train.exchange import gather
from topout.train.place import Place
from topout.train.tensor_exchange import gather_tensors


@dataclass(frozen=True)
class Mean:
    value: Any
    count: Any
    is_total: bool = False
    """Whether the value is the samples' sum already."""


@dataclass(frozen=True)
class PerSample:
    values: Any


def mean(value: Any, count: Any = None) -> Mean:
    """`value` is the mean of `count` samples; without a count it holds one entry for each of them."""
    if count is not None:
        return Mean(value, count)
    values = torch.as_tensor(value)
    if values.is_floating_point() and values.device.type != "mps":  # which has no doubles
        return Mean(values.detach().sum(dtype=torch.float64), values.numel(), is_total=True)
    return Mean(values.detach().sum(), values.numel(), is_total=True)


def per_sample(values: Any) -> PerSample:
    """One row for each sample of the batch."""
    return PerSample(values)


class Tally:
    """What one rank's batches said, by name and number of the batch. Numbers stay on the device until the end."""

    def __init__(self) -> None:
        self._kinds: dict[str, str] = {}
        self._numbers: dict[str, list[int]] = {}
        self._values: dict[str, list[Any]] = {}

    def add(self, number: int, said: Any) -> None:
        if said is None:
            return
        if not isinstance(said, Mapping):
            raise TopoutError(
                f"The evaluation step returned a {type(said).__name__}.",
                why="What it returns is put together by name.",
                do='return a dict such as {"loss": mean(loss, len(labels))}, or None',
            )
        for name, value in said.items():
            kind, kept = _understood(str(name), value)
            _check_kinds(str(name), self._kinds.setdefault(str(name), kind), kind)
            self._keep(str(name), kind, number, kept)

    def combined(self, place: Place) -> dict[str, Any]:
        """The figures of all ranks, on all ranks."""
        small = {name: self._small(name) for name, kind in self._kinds.items() if kind in ("sum", "mean")}
        large = {name: self._numbers[name] for name, kind in self._kinds.items() if kind not in ("sum", "mean")}
        tensors = [tensor for name in large for tensor in self._values[name]]
        ranks = gather({"kinds": self._kinds, "small": small, "large": large}, place)
        kinds: dict[str, str] = {}
        for name, kind in (item for said in ranks for item in said["kinds"].items()):
            _check_kinds(name, kinds.setdefault(name, kind), kind)
        gathered = gather_tensors(tensors, place) if any(said["large"] for said in ranks) else [[] for _ in ranks]
        entries = _entries(ranks, gathered)
        return {name: _folded(name, kind, entries[name]) for name, kind in kinds.items()}

    def _keep(self, name: str, kind: str, number: int, value: Any) -> None:
        numbers, values = self._numbers.setdefault(name, []), self._values.setdefault(name, [])
        if kind == "whole" and values and values[0].shape == value.shape:
            # exact in any order, so a confusion matrix need not be kept once for each batch
            values[0] = values[0] + value
            return
        numbers.append(number)
        values.append(value)

    def _small(self, name: str) -> list[list[Any]]:
        values, numbers = self._values[name], self._numbers[name]
        if self._kinds[name] == "sum":
            return [[number, value] for number, value in zip(numbers, _on_host(values), strict=True)]
        counts = _on_host([of_batch.count for of_batch in values])
        totals = [
            value if of_batch.is_total else value * count
            for of_batch, value, count in zip(
                values, _on_host([of_batch.value for of_batch in values]), counts, strict=True
            )
        ]
        return [[number, [total, count]] for number, total, count in zip(numbers, totals, counts, strict=True)]


_SAID = {"sum": "a number", "mean": "a mean", "whole": "a tensor of whole numbers", "real": "a tensor", "rows": "rows"}


def _understood(name: str, value: Any) -> tuple[str, Any]:
    # all of them copies: the next batch may be computed into the same memory, as by compiled models
    if isinstance(value, Mean) and _is_one_number(value.value):
        return "mean", replace(value, value=value.value.detach().clone()) if _is_tensor(value.value) else value
    is_rows = isinstance(value, PerSample)
    inner = value.values if isinstance(value, PerSample) else value
    is_text = isinstance(inner, list) and any(isinstance(one, str) for one in inner)
    if not is_text and isinstance(inner, np.ndarray | list) and (is_rows or isinstance(inner, np.ndarray)):
        inner = torch.as_tensor(inner)
    if _is_tensor(inner) and not inner.is_complex():
        if is_rows:
            return "rows", inner.detach().reshape(inner.shape or (1,)).to("cpu", copy=True)
        if inner.dim() == 0:
            return "sum", inner.detach().clone()
        kind, dtype = ("real", torch.float64) if inner.is_floating_point() else ("whole", torch.int64)
        return kind, inner.detach().cpu().to(dtype, copy=True)
    if isinstance(inner, int | float | np.integer | np.floating | np.bool_) and not is_rows:
        return "sum", inner
    raise TopoutError(
        f"{name!r} is a {_kind(inner)}, which cannot be put together over batches.",
        why="Numbers and tensors are summed; mean(value, count) and per_sample(tensor) say what else to do.",
        do=f"return a number, a tensor, mean(...) or per_sample(...) as {name!r}",
    )


def _kind(value: Any) -> str:
    if isinstance(value, Mean):
        sizes = f" of shape {tuple(value.value.shape)}" if _is_tensor(value.value) else ""
        return f"mean of a {type(value.value).__name__}{sizes}"
    return type(value).__name__


def _is_one_number(value: Any) -> bool:
    if _is_tensor(value) or isinstance(value, np.ndarray):
        return bool(math.prod(value.shape) == 1)
    return isinstance(value, int | float | np.integer | np.floating | np.bool_)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _check_kinds(name: str, kind: str, other: str) -> None:
    if kind != other:
        raise TopoutError(
            f"{name!r} is {_SAID[kind]} for one batch and {_SAID[other]} for another.",
            why="Values of different kinds cannot be put together.",
            do="return the same kind of value under a name, whatever the batch",
        )


def _entries(ranks: list[Any], gathered: list[list[torch.Tensor]]) -> dict[str, list[Any]]:
    """(number, value) by name, in the order of the batches."""
    entries: dict[str, list[Any]] = {}
    for said, tensors in zip(ranks, gathered, strict=True):
        arrived = iter(tensors)
        for name, pairs in said["small"].items():
            entries.setdefault(name, []).extend((number, value) for number, value in pairs)
        for name, numbers in said["large"].items():
            entries.setdefault(name, []).extend((number, next(arrived)) for number in numbers)
    return {name: sorted(pairs, key=lambda pair: int(pair[0])) for name, pairs in entries.items()}


def _folded(name: str, kind: str, pairs: list[Any]) -> Any:
    values = [value for _, value in pairs]
    if kind == "mean":
        count = _added(count for _, count in values)
        return _added(total for total, _ in values) / count if count else float("nan")
    shapes = {tuple(getattr(value, "shape", ()))[kind == "rows" :] for value in values}
    if len(shapes) > 1:
        raise TopoutError(
            f"The values of {name!r} do not fit together: batches gave shapes {sorted(shapes)}.",
            why="Rows may differ in number only, sums in nothing.",
            do="pad them to one shape, or return numbers",
        )
    return torch.cat(values) if kind == "rows" else _added(values)


def _added(values: Iterable[Any]) -> Any:
    """From left to right. Not sum(), which since Python 3.12 compensates and so is not what `+=` gives."""
    total: Any = 0
    for value in values:
        total = total + value
    return total


def _on_host(values: list[Any]) -> list[Any]:
    """Python's numbers; in one copy from the device where they are alike, which waits once instead of for each."""
    kinds = {(value.dtype, value.device) if isinstance(value, torch.Tensor) else None for value in values}
    if None not in kinds and len(kinds) == 1:
        return torch.stack([value.detach().reshape(()) for value in values]).tolist()  # type: ignore[no-any-return]
    return [value.item() if hasattr(value, "item") else value for value in values]
