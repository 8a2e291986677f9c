"""Objects as bytes that another rank may read: what torch's reader of plain values (`weights_only`) takes.

NumPy's numbers and arrays of numbers travel besides, as their bytes and the name of their type, wherever in an object
they lie: the reader knows no class of NumPy's, and common scripts hold such numbers (`lr * np.sqrt(hvd.size())`).
Horovod pickles whatever it is given; here nothing that arrives can run code, and what could is refused by all ranks.
"""

import io
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from topout.schema.errors import TopoutError

_KINDS = "biufcmMSU"
"""Of dtypes that are nothing but their bytes: truth values, numbers, times, texts of fixed length; no objects."""


def packed(obj: Any) -> bytes | None:
    """None for what the other ranks would refuse to read."""
    out = io.BytesIO()
    try:
        torch.save(obj, out, pickle_module=_WRITER)
        _read(out.getvalue(), lambda storage, _: storage)
    except (pickle.PickleError, AttributeError, TypeError):
        return None
    return out.getvalue()


def unpacked(raw: bytes) -> Any:
    return _read(raw, _to_own_gpu)


def refusal(of_rank: int) -> TopoutError:
    return TopoutError(
        f"The object of rank {of_rank} cannot be sent to other ranks.",
        why="Numbers, texts, tensors, NumPy's numbers and arrays of them, lists, dicts and sets travel; "
        "rebuilding anything else could run code.",
        do="send such values, or name its class on all ranks: torch.serialization.add_safe_globals([Class])",
    )


def _read(raw: bytes, map_location: Any) -> Any:
    with torch.serialization.safe_globals([_numpy_value]):
        return torch.load(io.BytesIO(raw), map_location=map_location, weights_only=True)


def _to_own_gpu(storage: Any, location: str) -> Any:
    """The sender's would cost memory there, or is not seen from here."""
    return storage.cuda() if location.startswith("cuda") and torch.cuda.is_available() else storage


def _numpy_value(content: Any, dtype_name: str, shape: tuple[int, ...] | None) -> Any:
    """All that an arriving object can call here: an array of these bytes, or without a shape the one number in it."""
    dtype = np.dtype(dtype_name)
    if dtype.kind not in _KINDS:
        raise pickle.UnpicklingError(f"{dtype_name} is more than its bytes")
    array = np.ndarray(() if shape is None else shape, dtype, buffer=content.numpy()).copy()
    return array[()] if shape is None else array


class _Writer(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        is_array = type(obj) in {np.ndarray, np.memmap}
        if not (is_array or isinstance(obj, np.generic)) or obj.dtype.kind not in _KINDS:
            return NotImplemented
        content = torch.from_numpy(np.frombuffer(bytearray(obj.tobytes()), np.uint8))
        return _numpy_value, (content, obj.dtype.str, obj.shape if is_array else None)


_WRITER = SimpleNamespace(__name__=__name__, Pickler=_Writer)
"""In place of a module of that kind, which is how torch takes a writer."""
