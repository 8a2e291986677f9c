"""When a checkpoint is due, decided alike by all ranks without a word at most steps.

By steps it is arithmetic. By time, rank 0's clock counts: the ranks look at it together at steps that they have agreed
on, each time as far ahead as the pace so far allows, and at the latest when a quarter more steps have passed.
"""

import re
import time
from collections.abc import Callable
from typing import Protocol

from topout.schema.errors import TopoutError
from topout.train.checkpoint.agreement import Agreement

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Pace(Protocol):
    def is_due(self, step: int) -> bool: ...
    def begin(self, step: int) -> None:
        """A checkpoint has just been taken or restored, or training begins."""
        ...


class Never:
    def is_due(self, step: int) -> bool:
        return False

    def begin(self, step: int) -> None: ...


class EverySteps:
    def __init__(self, steps: int) -> None:
        self._steps = steps

    def is_due(self, step: int) -> bool:
        return step % self._steps == 0

    def begin(self, step: int) -> None: ...


class EverySeconds:
    def __init__(self, seconds: float, agreement: Agreement, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._agreement, self._clock = seconds, agreement, clock
        self.begin(0)

    def begin(self, step: int) -> None:
        self._from_step, self._from_s = step, self._clock()
        self._look_at = step + 1

    def is_due(self, step: int) -> bool:
        if step < self._look_at:
            return False
        elapsed = float(self._agreement.first(self._clock() - self._from_s))
        num_steps = step - self._from_step
        step_s = elapsed / num_steps
        # half a step early is as near as half a step late
        if elapsed + step_s / 2 >= self._seconds:
            return True
        left = int((self._seconds - elapsed) / step_s) if step_s > 0 else num_steps
        self._look_at = step + max(1, min(left, num_steps // 4))
        return False


def pace(every: int | str | None, agreement: Agreement) -> Pace:
    """`every` is a number of steps, a time such as 90s, 10m or 2h, or None for `save()` alone."""
    if every is None:
        return Never()
    if isinstance(every, int) and not isinstance(every, bool) and every > 0:
        return EverySteps(every)
    given = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh])", every.strip()) if isinstance(every, str) else None
    if given is None or float(given[1]) == 0:
        raise TopoutError(
            f"every={every!r} says neither steps nor a time.",
            why="It decides when a checkpoint is due.",
            do='a number of steps (100), or a time ("90s", "10m", "2h")',
        )
    return EverySeconds(float(given[1]) * _SECONDS[given[2]], agreement)
