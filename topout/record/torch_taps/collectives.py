"""Taps the collectives that a script calls itself, and reads DDP's own from torch's flight recorder.

DDP issues its buckets from C++; a communication hook would see them but costs a third of a small step and takes the
place of the script's own. The flight recorder stamps each rank's arrival at no visible cost and is read at the end.
"""

import functools
import inspect
import sys
from threading import get_ident
from types import ModuleType
from typing import Any

import torch

from topout.record import gloo_threads
from topout.record.clock import TimeOfDay, now_ns
from topout.record.recorder import Recorder
from topout.record.row_names import AWAITED, LAUNCHED
from topout.record.torch_taps import flight, waits
from topout.record.torch_taps.sizes import num_bytes_of
from topout.record.torch_taps.uncompiled import leave_uncompiled
from topout.schema.event import NOT_GIVEN, Kind

_OPERATIONS = (
    "all_reduce", "all_reduce_coalesced", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "gather",
    "scatter", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier",
    "monitored_barrier", "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list",
    "all_gather_single", "reduce_scatter_single",
)  # fmt: skip
"""The last two are what torch 2.13 calls those into a tensor, FSDP2's among them."""
_POINT_TO_POINT = ("send", "recv", "isend", "irecv")


def install(module: ModuleType, recorder: Recorder) -> None:
    sequences: dict[str, int] = {}
    launches = waits.Launches()
    for name in (*_OPERATIONS, *_POINT_TO_POINT):
        if hasattr(module, name) and not recorder.settings.leaves_out(name):
            setattr(module, name, _tapped(module, name, sequences, launches, recorder))
    recorder.guard(waits.install, module.Work, launches, recorder)
    gloo_threads.install(module)
    recorder.groups = flight.GroupWatch(module)
    day = TimeOfDay()
    recorder.at_pulse.append(day.look)
    _tap_end(module, recorder, day)
    recorder.at_finish.append(functools.partial(flight.record_arrivals, recorder, day))


def _tapped(
    module: ModuleType, name: str, sequences: dict[str, int], launches: waits.Launches, recorder: Recorder
) -> Any:
    original, work_class = getattr(module, name), module.Work
    is_matched = name in _OPERATIONS
    place = _place_of_group(original)
    operation, page = name.encode(), recorder.page

    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        # an object collective is made of tensor ones
        if torch.compiler.is_compiling() or get_ident() in recorder.communicating:
            return original(*args, **kwargs)
        group = _group_name(args[place] if len(args) > place else kwargs.get("group"))
        sequence = NOT_GIVEN
        if is_matched:
            sequence = sequences[group] = sequences.get(group, -1) + 1
        num_bytes = _num_bytes(args, kwargs)
        start_ns = now_ns()
        page.enter(operation, group.encode(), sequence, num_bytes, start_ns)
        recorder.communicating.add(get_ident())
        work = None
        try:
            work = original(*args, **kwargs)
            return work
        finally:
            recorder.communicating.discard(get_ident())
            page.leave(now_ns())
            is_launch = isinstance(work, work_class)
            called = name + LAUNCHED + group if is_launch else name + group
            recorder.span(recorder.code(Kind.COLLECTIVE, called), start_ns, num_bytes, sequence)
            if is_launch:
                launches.remember(work, (recorder.code(Kind.COLLECTIVE, name + AWAITED + group), sequence))

    return leave_uncompiled(collective)


def _place_of_group(operation: Any) -> int:
    """Among the arguments by position; beyond them all where it has none."""
    names = list(inspect.signature(operation).parameters)
    return names.index("group") if "group" in names else sys.maxsize


def _group_name(group: Any) -> str:
    """Empty for the default group; others are told apart by torch's name, which is the same on all ranks."""
    return f"@{group.group_name}" if group is not None and hasattr(group, "group_name") else ""


@leave_uncompiled
def _num_bytes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    for candidate in (*args[:2], *kwargs.values()):
        if isinstance(candidate, (list, tuple)) and candidate and isinstance(candidate[0], torch.Tensor):
            return max(NOT_GIVEN, sum(map(num_bytes_of, candidate)))
        if isinstance(candidate, torch.Tensor):
            return num_bytes_of(candidate)
    return NOT_GIVEN


def _tap_end(module: ModuleType, recorder: Recorder, day: TimeOfDay) -> None:
    """The flight recorder may go with the process group: read it before."""
    original = module.destroy_process_group

    @functools.wraps(original)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        was_there = module.is_initialized()
        recorder.guard(flight.record_arrivals, recorder, day)
        try:
            return original(*args, **kwargs)
        finally:
            if was_there and not module.is_initialized():
                flight.default_group_gone()

    setattr(module, original.__name__, destroy_process_group)
