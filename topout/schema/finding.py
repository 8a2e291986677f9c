"""Rules and what they find: what is wrong, why, what to try, and how much it may win."""

from collections.abc import Callable
from dataclasses import dataclass

from topout.schema.measures import Measures

Gain = Callable[[Measures], float | None]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule is data; the docstring of its file is its explanation.

    Either `measure` and a limit (`above` or `below`), or `when` for what one threshold cannot say. `value` is what the
    sentences may show as `{value}`; `limit` is the threshold.
    """

    code: str
    title: str
    because: str
    advise: str
    measure: str | None = None
    """Dotted path into `Measures`, such as `input.wait_share`."""
    above: float | None = None
    below: float | None = None
    when: Callable[[Measures], bool] | None = None
    gain: Gain | None = None
    """Upper bound of the share of time to be won, read off the waterfall; defaults to the measure itself."""
    changes: tuple[str, ...] = ()
    """Changes that `verify` can apply by itself."""
    fires_on: Measures
    quiet_on: Measures


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One rule that fired on one run."""

    code: str
    title: str
    because: str
    advise: str
    gain_at_most: float | None
    """Predicted upper bound: 0.25 means the job could at best take 25 % less time. None: no bound can be computed."""
    changes: tuple[str, ...] = ()
