"""Taps what a script does with a collective it launched: waits for it or a future of it, or asks whether it is over.

A future made from another (`then`, `collect_all`) is waited for as the collective is. Not for loops that ask until it
is over: what a script does between two questions may be waiting or work, so only that it asks is kept.
"""

import functools
from collections.abc import Callable
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

import torch

from topout.record.clock import now_ns
from topout.record.recorder import Recorder
from topout.record.row_names import AWAITED
from topout.record.torch_taps.uncompiled import leave_uncompiled
from topout.schema.event import NOT_GIVEN, Kind

_WORTH_A_ROW_NS = 20_000
"""A shorter wait was for what was there already, or does not hold the host, as on a GPU."""

Launch = tuple[int, int]
"""Code of the row of waiting for a collective, and its sequence number."""


class Launches(WeakKeyDictionary[Any, Launch]):
    """By the work, or by a future of it; gone with it. What cannot be a key (a class of the script's) is not known."""

    def remember(self, given: Any, launch: Launch | None) -> None:
        if launch is not None:
            try:
                self[given] = launch
            except TypeError:
                return

    def known(self, given: Any) -> Launch | None:
        try:
            return self.get(given)
        except TypeError:
            return None


def install(work_class: Any, launches: Launches, recorder: Recorder) -> None:
    native: Any = torch._C
    futures = Launches()
    unknown = recorder.code(Kind.COLLECTIVE, AWAITED), NOT_GIVEN
    recorder.guard(_tap_wait, work_class, launches, unknown, recorder)
    recorder.guard(_tap_wait, native.Future, futures, None, recorder)
    recorder.guard(_tap_source, work_class, "get_future", launches.known, futures)
    recorder.guard(_tap_source, native.Future, "then", futures.known, futures)
    recorder.guard(_tap_source, native, "_collect_all", functools.partial(_last_of, futures), futures)
    recorder.guard(_tap_question, work_class, "is_completed", launches, recorder)
    recorder.guard(_tap_question, native.Future, "done", futures, recorder)


def _tap_wait(owner: Any, launches: Launches, unknown: Launch | None, recorder: Recorder) -> None:
    """What a script launched with `async_op=True`, `isend` or `irecv` holds it when it waits for it.

    `unknown` is what other works are waited for as; futures that are no collective's are left alone.
    """
    original = owner.wait

    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        launch = launches.known(self) or unknown
        if launch is None or torch.compiler.is_compiling() or get_ident() in recorder.communicating:
            return original(self, *args, **kwargs)
        start_ns = now_ns()
        try:
            return original(self, *args, **kwargs)
        finally:
            if now_ns() - start_ns >= _WORTH_A_ROW_NS:
                recorder.span(launch[0], start_ns, NOT_GIVEN, launch[1])

    owner.wait = leave_uncompiled(wait)


def _tap_source(owner: Any, name: str, launch_of: Callable[[Any], Launch | None], futures: Launches) -> None:
    """What makes a future: known by what its first argument was launched as."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def make_future(*args: Any, **kwargs: Any) -> Any:
        future = original(*args, **kwargs)
        if args and not torch.compiler.is_compiling():
            futures.remember(future, launch_of(args[0]))
        return future

    setattr(owner, name, leave_uncompiled(make_future))


def _last_of(futures: Launches, given: Any) -> Launch | None:
    """All of them are waited for, and what was launched last mostly comes last."""
    launched = map(futures.known, reversed(given) if isinstance(given, list) else ())
    return next((launch for launch in launched if launch is not None), None)


def _tap_question(owner: Any, name: str, launches: Launches, recorder: Recorder) -> None:
    """Asked twice about one collective within a step, a script may be waiting: said once, then the tap is gone."""
    original = getattr(owner, name)
    asked_in: dict[Launch, int] = {}

    @functools.wraps(original)
    def question(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_over = original(self, *args, **kwargs)
        if is_over or torch.compiler.is_compiling():
            return is_over
        launch, step = launches.known(self), recorder.num_steps
        if launch is not None and asked_in.get(launch) == step:
            recorder.fact(polls_collectives=True)
            setattr(owner, name, original)
        elif launch is not None:
            asked_in.clear()
            asked_in[launch] = step
        return is_over

    setattr(owner, name, leave_uncompiled(question))
