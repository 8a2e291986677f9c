"""Groupings tried in turns while training goes on, and the choice between them. Pure: the clock is the caller's.

Each candidate trains some steps, then the next, and all of them again, so that a machine that slows down slows all of
them. The first stays unless another one beats it: in every round and by more than noise, or in the mean by so much that
a round in which the machine was slower does not matter. Among the others, too, a later one in the list must be clearly
faster: simpler ones come first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

NUM_ROUNDS = 2
NUM_SETTLING = 2
"""Steps after a change that do not count: in the first DDP averages in another order, in the second it rebuilds."""
NUM_MEASURED = 5
WORTH_A_CHANGE = 0.01
BEYOND_DOUBT = 0.05
"""Of a mean: on a machine that is not quiet a block of five steps is 3 to 10 % off now and then."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """`gain_share` is how much shorter the chosen one's step was than DDP's default's, measured on the slowest rank.

    Below 0 where the first stayed, and the default was quicker by less than what is noise.
    """

    candidate: int
    step_s: float
    default_s: float

    @property
    def gain_share(self) -> float:
        return 1 - self.step_s / self.default_s


def turns(num_candidates: int) -> list[int]:
    """Which candidate trains in each block; the second round backwards, against drift."""
    forth = list(range(num_candidates))
    return [number for turn in range(NUM_ROUNDS) for number in (forth if turn % 2 == 0 else forth[::-1])]


def num_steps(num_candidates: int) -> int:
    return len(turns(num_candidates)) * (NUM_SETTLING + NUM_MEASURED)


def choose(times_s: Sequence[tuple[int, float]], num_candidates: int, default: int = 0) -> Choice:
    """From (candidate, step time) of every block, in the order of `turns`; candidate 0 stays unless beaten."""
    rounds: list[dict[int, float]] = [
        dict(times_s[turn * num_candidates : (turn + 1) * num_candidates]) for turn in range(NUM_ROUNDS)
    ]
    means = [sum(seen[number] for seen in rounds) / NUM_ROUNDS for number in range(num_candidates)]
    best = 0
    for number in range(1, num_candidates):
        wins = all(seen[number] < seen[0] for seen in rounds) or means[number] < (1 - BEYOND_DOUBT) * means[0]
        if wins and means[number] < (1 - WORTH_A_CHANGE) * means[best]:
            best = number
    return Choice(candidate=best, step_s=means[best], default_s=means[default])
