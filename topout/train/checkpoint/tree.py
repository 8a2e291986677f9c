"""State as JSON: plain values written out, tensors named and taken aside.

What has no plain form (a function, an object of a class of one's own) is refused by its path rather than pickled:
reading a pickle back could run any code.
"""

import base64
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from topout.schema.errors import TopoutError

Json = Any
KIND = "$"
"""The key that says that an object of JSON stands for something else than a dict."""

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16",
        "uint8", "bool", "complex128", "complex64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
        "float8_e5m2fnuz",
    )
    if hasattr(torch, name)
}  # fmt: skip
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def encoded(value: Any, path: str, put: Callable[[str, torch.Tensor], str]) -> Json:
    """`put` takes a tensor aside and says under which name."""
    if value is None or isinstance(value, (bool, int, float, str)):
        # subclasses (np.float64 among them) become what they are subclasses of
        return _scalar(value)
    if isinstance(value, torch.Tensor):
        _check_tensor(value, path)
        return {KIND: "tensor", "name": put(path, value.detach())}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return {KIND: "array", "name": put(path, torch.from_numpy(np.array(value)))}
    if isinstance(value, np.generic) and value.dtype.kind in "biufc":
        return encoded(value.item(), path, put)
    if isinstance(value, Mapping):
        return _encoded_mapping(value, path, put)
    if isinstance(value, list):
        return [encoded(item, f"{path}.{at}", put) for at, item in enumerate(value)]
    if isinstance(value, (tuple, set, frozenset)):
        kind = "tuple" if isinstance(value, tuple) else "set"
        return {KIND: kind, "items": [encoded(item, f"{path}.{at}", put) for at, item in enumerate(value)]}
    return _encoded_leaf(value, path)


def decoded(value: Json, tensor_of: Callable[[str], torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [decoded(item, tensor_of) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(KIND)
    if kind is None:
        return {key: decoded(item, tensor_of) for key, item in value.items()}
    if kind == "tensor":
        return tensor_of(value["name"])
    if kind == "array":
        return tensor_of(value["name"]).cpu().numpy()
    if kind == "dtype":
        return DTYPES[value["name"]]
    if kind == "device":
        return torch.device(value["name"])
    if kind == "bytes":
        return base64.b64decode(value["base64"])
    if kind == "complex":
        return complex(*value["parts"])
    items = [decoded(item, tensor_of) for item in value["items"]]
    return _CONTAINERS[kind](items)


_CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "set": set,
    "dict": dict,
    "ordered": OrderedDict,
    "counter": lambda items: Counter(dict(items)),
}


def _scalar(value: Any) -> Json:
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return None


def _encoded_mapping(value: Mapping[Any, Any], path: str, put: Callable[[str, torch.Tensor], str]) -> Json:
    kind = "counter" if isinstance(value, Counter) else "ordered" if isinstance(value, OrderedDict) else "dict"
    if kind == "dict" and all(type(key) is str for key in value) and KIND not in value:
        return {key: encoded(item, f"{path}.{key}", put) for key, item in value.items()}
    items = [
        {KIND: "tuple", "items": [encoded(key, f"{path}.key", put), encoded(item, f"{path}.{key}", put)]}
        for key, item in value.items()
    ]
    return {KIND: kind, "items": items}


def _encoded_leaf(value: Any, path: str) -> Json:
    if isinstance(value, (bytes, bytearray)):
        return {KIND: "bytes", "base64": base64.b64encode(value).decode()}
    if isinstance(value, complex):
        return {KIND: "complex", "parts": [value.real, value.imag]}
    if isinstance(value, torch.dtype) and value in DTYPE_NAMES:
        return {KIND: "dtype", "name": DTYPE_NAMES[value]}
    if isinstance(value, torch.device):
        return {KIND: "device", "name": str(value)}
    raise TopoutError(
        f"{path} cannot be saved: it is a {type(value).__module__}.{type(value).__qualname__}.",
        why="A checkpoint holds tensors and plain values; reading anything else back could run code.",
        do="leave it out of state_dict(), or give the object a state_dict() of numbers, strings, lists and tensors",
    )


def _check_tensor(tensor: torch.Tensor, path: str) -> None:
    if tensor.layout is torch.strided and tensor.dtype in DTYPE_NAMES and not tensor.is_meta:
        return
    raise TopoutError(
        f"{path} cannot be saved: it is a tensor of {tensor.dtype}, {tensor.layout}, on {tensor.device}.",
        why="Checkpoints hold dense tensors of the ordinary types, with values.",
        do="convert it in state_dict(), for instance with to_dense()",
    )
