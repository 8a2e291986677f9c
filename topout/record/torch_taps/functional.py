"""Taps functional collectives, which DTensor uses: how long a rank stands in each until its peers have come.

They are launched, and waited for when their result is first read: tensor parallelism does so inside forward and
backward, several times a layer, where DDP's way of accounting (the last arrival before the end of backward) sees
nothing. A row is written for the waiting alone. On a GPU waiting does not hold the host, and the rows are empty; inside
compiled graphs there is no Python to tap.
"""

import functools
import inspect
from types import ModuleType
from typing import Any

import torch

from topout.record.clock import now_ns
from topout.record.recorder import Recorder
from topout.schema.event import NOT_GIVEN, Kind

_LAUNCHES = (
    "all_reduce", "broadcast", "all_gather_single", "reduce_scatter_single", "all_to_all_single",
    "all_reduce_coalesced", "all_gather_single_coalesced", "reduce_scatter_single_coalesced", "permute_tensor",
)  # fmt: skip
_FORMERLY = {
    "all_gather_single": "all_gather_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "all_gather_single_coalesced": "all_gather_into_tensor_coalesced",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
}
"""What torch called them before 2.13."""
_MOST_PENDING = 1024
"""Results that nobody waits for must not fill the memory."""
_WORTH_A_ROW_NS = 20_000
"""A wait nobody knows the collective of, as most waits for what is there already."""

Launch = tuple[int, int]
"""code of its rows, sequence number in its group"""


def install(module: ModuleType, recorder: Recorder) -> None:
    taps = _Taps(module, recorder)
    for name in _LAUNCHES:
        found = name if hasattr(module, name) else _FORMERLY.get(name, name)
        if hasattr(module, found):
            setattr(module, found, taps.launching(getattr(module, found), name))
    setattr(module, "wait_tensor", taps.waiting(module.wait_tensor))  # noqa: B010


class _Taps:
    """Remembers which collective a result comes from, until somebody waits for it."""

    def __init__(self, module: ModuleType, recorder: Recorder) -> None:
        self._module: Any = module
        self._recorder = recorder
        self._pending: dict[int, Launch] = {}
        """By the address of the result's storage: views of it are waited for as well."""
        self._sequences: dict[str, int] = {}
        self._launched: Launch | None = None
        """The collective being launched; some wait for their own result."""
        self._unknown = recorder.code(Kind.PEERS)

    def launching(self, original: Any, name: str) -> Any:
        place = _place_of_group(original)

        @functools.wraps(original)
        def launch(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or self._launched is not None:
                return original(*args, **kwargs)
            self._launched = self._recorder.guard(self._begin, name, place, args, kwargs)
            try:
                result = original(*args, **kwargs)
            finally:
                launched, self._launched = self._launched, None
            if launched is not None:
                self._recorder.guard(self._remember, result, launched)
            return result

        return launch

    def waiting(self, original: Any) -> Any:
        @functools.wraps(original)
        def wait_tensor(tensor: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(tensor)
            start_ns = now_ns()
            launch = self._pending.pop(_address(tensor), None) or self._launched
            try:
                return original(tensor)
            finally:
                if launch is not None:
                    self._recorder.span(launch[0], start_ns, NOT_GIVEN, launch[1])
                elif now_ns() - start_ns >= _WORTH_A_ROW_NS:
                    self._recorder.span(self._unknown, start_ns)

        return wait_tensor

    def _begin(self, name: str, place: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Launch:
        group = kwargs["group"] if "group" in kwargs else args[place]
        resolved: Any = self._module._resolve_group_name(group, kwargs.get("tag", ""))
        sequence = self._sequences[resolved] = self._sequences.get(resolved, -1) + 1
        return self._recorder.code(Kind.PEERS, f"{name}@{resolved}"), sequence

    def _remember(self, result: Any, launched: Launch) -> None:
        if len(self._pending) >= _MOST_PENDING:
            self._pending.clear()
        for one in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(one, self._module.AsyncCollectiveTensor) and not getattr(one, "completed", False):
                self._pending[_address(one.elem)] = launched


def _place_of_group(function: Any) -> int:
    return list(inspect.signature(function).parameters).index("group")


def _address(tensor: Any) -> int:
    """0 for a tensor without storage of its own, such as one that is only traced."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except Exception:
        return 0
