"""The rate of a batch, from a rate that was good at another batch.

    linear: rate * batch / base batch        sqrt: rate * sqrt(batch / base batch)        none: rate

Linear keeps what SGD does on average as long as batches are small against the gradient's noise; sqrt keeps the noise of
a step, and is what LARS and LAMB are run with. Not a promise: past some batch no rate learns as well.
References: Goyal et al. 2017 (arXiv 1706.02677); Krizhevsky 2014 (arXiv 1404.5997).
"""

import math
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from topout.schema.errors import TopoutError

RULES = ("linear", "sqrt", "none")


@dataclass(frozen=True, kw_only=True)
class BatchRule:
    """`base` is a batch and the rate that was good there; batches count samples of all ranks in one step."""

    batch: int
    rule: str = "sqrt"
    base: tuple[int, float]

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise unknown("rule", self.rule, RULES)
        if not isinstance(self.base, (tuple, list)) or len(self.base) != 2:
            raise refusal("base", self.base, "a batch and its rate, as in (64, 0.1)")
        for name, batch in (("batch", self.batch), ("base batch", self.base[0])):
            if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
                raise refusal(name, batch, "a whole number from 1 on")
        rate = self.base[1]
        if not isinstance(rate, (int, float)) or isinstance(rate, bool) or not 0 < rate < math.inf:
            raise refusal("base rate", rate, "a number above 0, and finite")

    @property
    def rate(self) -> float:
        times = self.batch / self.base[0]
        return float(self.base[1] * {"linear": times, "sqrt": math.sqrt(times), "none": 1.0}[self.rule])


def unknown(what: str, name: object, valid: tuple[str, ...]) -> TopoutError:
    near = get_close_matches(str(name), valid, n=1)
    return TopoutError(
        f"There is no {what} {name!r}.",
        why=f"Known are {', '.join(valid)}.",
        do=f"did you mean {near[0]!r}?" if near else "choose one of them",
    )


def refusal(what: str, value: Any, allowed: str) -> TopoutError:
    return TopoutError(
        f"The {what} cannot be {value!r}.", why="The rate and its schedule are computed from it.", do=f"pass {allowed}"
    )
