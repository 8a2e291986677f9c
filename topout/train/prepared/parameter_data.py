"""Tells when a script asks for the `data` of a parameter whose next value was computed already.

What is written through it (`p.data.mul_(0.9)`, as old weight decay does) torch counts as no change. Reading it between
backward and step costs that step its head start and nothing else. In place from the first prepared update on; a set
look-up for each access, and nothing for those who never ask.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

_waiting: dict[int, Callable[[], None]] = {}
"""By the parameter's id; it keeps nobody alive, neither the parameter nor who is to be told."""
_data = torch.Tensor.data


def tell(parameters: Iterable[Any], told: Callable[[], None]) -> None:
    """Until `forget`: `told` is called before somebody gets the data of one of these."""
    if torch.nn.Parameter.data is _data:
        torch.nn.Parameter.data = property(_asked, _data.__set__, _data.__delete__)
    _waiting.update(dict.fromkeys(map(id, parameters), told))


def forget(parameters: Iterable[Any]) -> None:
    for number in map(id, parameters):
        _waiting.pop(number, None)


def unasked(tensor: Any) -> Any:
    """The same memory with a count of changes of its own, and nobody is told."""
    return _data.__get__(tensor)


def _asked(parameter: Any) -> Any:
    if _waiting and (told := _waiting.get(id(parameter))) is not None:
        told()
    return _data.__get__(parameter)
