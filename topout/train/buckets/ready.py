"""When each gradient of a step is ready, in the order in which backward produces them.

Hooks on every parameter cost up to a third of a small step, so they stay for a few steps only.
"""

import time
from collections.abc import Callable
from typing import Any

from topout.train.buckets.grouping import Gradient


class ReadyTimes:
    """Attached from making to `detach`; `begin` marks a step, `counts` tells whether a backward belongs to one."""

    def __init__(self, parameters: list[Any], counts: Callable[[], bool]) -> None:
        self._parameters = parameters
        self._counts = counts
        self._start_s = 0.0
        self._steps: list[list[tuple[int, float]]] = []
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._note(number))
            for number, parameter in enumerate(parameters)
        ]

    def begin(self) -> None:
        self._start_s = time.perf_counter()
        self._steps.append([])

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @property
    def is_whole(self) -> bool:
        """Whether every step produced every gradient once: only then are groups the same in every step."""
        every = set(range(len(self._parameters)))
        return bool(self._steps) and all(
            len(step) == len(every) and {number for number, _ in step} == every for step in self._steps
        )

    def gradients(self) -> list[Gradient]:
        """Of the last step; times are the shortest seen, in its order."""
        quickest = {
            number: min(ready_s for step in self._steps for other, ready_s in step if other == number)
            for number, _ in self._steps[-1]
        }
        latest_s, found = 0.0, []
        for number, _ in self._steps[-1]:
            latest_s = max(latest_s, quickest[number])
            parameter = self._parameters[number]
            found.append(Gradient(num_bytes=parameter.numel() * parameter.element_size(), ready_s=latest_s))
        return found

    def apart(self, pace_s: float) -> list[Any]:
        """Parameters, in the order of the last step, each ready at least so long after the one before."""
        found, last_s = [], None
        for (number, _), gradient in zip(self._steps[-1], self.gradients(), strict=True):
            if last_s is None or gradient.ready_s - last_s >= pace_s:
                found.append(self._parameters[number])
                last_s = gradient.ready_s
        # after the first gradient there is nothing to send yet
        return found[1:]

    def _note(self, number: int) -> Any:
        def note(_: Any) -> None:
            if self._steps and self._counts():
                self._steps[-1].append((number, time.perf_counter() - self._start_s))

        return note
