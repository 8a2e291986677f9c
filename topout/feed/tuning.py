"""Which decoder and how many threads: the quickest to make a batch first, then what serves the running script best.

At the start each choice makes a batch or two by itself. That tells nothing of how it shares cores and GPU with the
training, so while the script waits for batches the choices take turns, and the one with the highest rate of whole steps
stays. A script that does not wait is left alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

PERIOD = 32
"""Batches after which a choice is judged."""
WAITING_SHARE = 0.02
"""Of the time between batches; with less there is nothing to gain."""
ENOUGH = 0.97
"""Of the best rate: fewer threads that reach so much leave cores to the script."""


@dataclass(frozen=True, order=True)
class Choice:
    num_threads: int
    on_device: bool = False


class Chooser:
    """Hears of every batch and says what makes the next ones."""

    def __init__(self, choices: Sequence[Choice]) -> None:
        self._untried = list(choices)
        self.current = self._untried.pop(0)
        self.rates: dict[Choice, float] = {}
        """Batches a second, the script included."""
        self._begin(is_settling=True)

    def heard(self, wait_ns: int, between_ns: int) -> None:
        """`between_ns` is from batch to batch, `wait_ns` the part spent waiting."""
        if self._num_settling:
            # made ahead by the choice before
            self._num_settling -= 1
            return
        self._num_batches += 1
        self._wait_ns += wait_ns
        self._between_ns += between_ns
        if self._num_batches >= PERIOD:
            self._judge()

    def _judge(self) -> None:
        self.rates[self.current] = self._num_batches / max(1, self._between_ns) * 1e9
        is_waiting = self._wait_ns > WAITING_SHARE * self._between_ns
        if is_waiting and self._untried:
            self.current = self._untried.pop(0)
        elif is_waiting or len(self.rates) > 1:
            self.current = max(self.rates, key=lambda choice: self.rates[choice])
            self._untried.clear()
        self._begin(is_settling=True)

    def _begin(self, *, is_settling: bool) -> None:
        self._num_settling = PERIOD // 4 if is_settling else 0
        self._num_batches = self._wait_ns = self._between_ns = 0


def ranked(batch_s: dict[Choice, float]) -> list[Choice]:
    """Choices by the seconds a batch took, the quickest first, but fewer threads before more that gain nothing."""
    best_s = min(batch_s.values())
    enough = sorted(choice for choice, seconds in batch_s.items() if best_s >= ENOUGH * seconds)
    rest = sorted((seconds, choice) for choice, seconds in batch_s.items() if choice not in enough)
    return [*enough, *(choice for _, choice in rest)]


def thread_choices(num_cores: int) -> list[Choice]:
    """All cores, all but one or an eighth, and half of them."""
    counts = {num_cores, num_cores - max(1, num_cores // 8), num_cores // 2}
    return [Choice(count) for count in sorted(counts, reverse=True) if count >= 1]
