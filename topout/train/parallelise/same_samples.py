"""One number of a data set that tells whether ranks hold the same samples in the same places.

Of what a split chose, and of a few values of whatever a data set keeps for each sample: tensors, arrays, lists of paths
and labels. A table that was shuffled by numbers nobody seeded has other rows on each rank, of which some would be
trained on twice and others never. Not of what is read from files when it is asked for.
"""

import zlib
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

_MOST_SAMPLES, _MOST_ALONG, _MOST_DEEP = 512, 4, 8
"""Looked at: samples of a table, places along each further dimension, data sets inside each other."""
_PLAIN = (str, bytes, int, float, PurePath, np.number, type(None))


def fingerprint(dataset: Any, *, has_begun: bool) -> int:
    """`has_begun`: the script's own data sets may have changed by then, as where they keep what a rank has loaded."""
    number = 0
    for table in _tables(dataset, has_begun, _MOST_DEEP):
        number = zlib.crc32(table, number)
    return number


def _tables(dataset: Any, has_begun: bool, depth: int) -> Iterator[bytes]:
    if not depth:
        return
    inner: list[Any] = []
    if isinstance(dataset, Subset):
        yield repr(list(dataset.indices)).encode()
        inner = [dataset.dataset]
    elif isinstance(dataset, ConcatDataset):
        inner = list(dataset.datasets)
    elif isinstance(dataset, TensorDataset):
        yield from map(_few, dataset.tensors)
    else:
        held = vars(dataset) if hasattr(dataset, "__dict__") else {}
        if not has_begun:
            yield from (_few(value) for value in held.values() if _is_table(value, dataset))
        inner = [value for value in held.values() if isinstance(value, Dataset)]
    for other in inner:
        yield from _tables(other, has_begun, depth - 1)


def _is_table(value: Any, dataset: Any) -> bool:
    if not isinstance(value, torch.Tensor | np.ndarray | list | tuple):
        return False
    return len(value) == len(dataset) if getattr(value, "shape", (1,)) else False


def _few(table: Any) -> bytes:
    step = max(1, len(table) // _MOST_SAMPLES)
    if isinstance(table, list | tuple):
        return "\n".join(_text(value) for value in table[::step]).encode()
    along = tuple(slice(None, None, max(1, size // _MOST_ALONG)) for size in table.shape[1:])
    rows = table[(slice(None, None, step), *along)]
    return _of_array(rows)


def _of_array(rows: Any) -> bytes:
    if isinstance(rows, torch.Tensor):
        if rows.layout is not torch.strided:
            return b""
        values = torch.view_as_real(rows) if rows.is_complex() else rows
        return repr(values.detach().cpu().tolist()).encode()
    return "".join(map(_text, rows.ravel().tolist())).encode()


def _text(value: Any) -> str:
    """Nothing of what a person made, which may show where in memory it lies."""
    if isinstance(value, _PLAIN):
        return f"{value!r},"
    if isinstance(value, list | tuple):
        return "".join(map(_text, value[:_MOST_ALONG]))
    if isinstance(value, torch.Tensor | np.ndarray) and value.shape:
        return _few(value).decode()
    return ""
