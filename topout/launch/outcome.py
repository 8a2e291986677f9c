"""How jobs end: the causes, how long the launcher waits for what, and in which steps ranks are told to go.

Only nouns and numbers; `supervise` acts on them.
"""

from __future__ import annotations

from topout.schema.light_dataclass import dataclass
from topout.schema.light_enum import StrEnum
from topout.schema.light_signal import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias

    from topout.launch.first_failure import RankEnd


class Cause(StrEnum):
    """Why a job ended."""

    ALL_DONE = "all done"
    RANK_FAILED = "rank failed"
    HOST_LOST = "host lost"
    INTERRUPTED = "interrupted"
    SINGLE_DEVICE = "single device"
    SINGLE_DEVICE_KERAS = "single device, Keras"
    RANK_STOPPED = "rank stopped"


MAY_BE_RESTARTED = frozenset({Cause.RANK_FAILED, Cause.HOST_LOST, Cause.RANK_STOPPED})
TRAIN_ALONE = frozenset({Cause.SINGLE_DEVICE, Cause.SINGLE_DEVICE_KERAS})


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long the launcher waits for what, in seconds."""

    exit_s: float = 5.0
    """From a rank's last line or its traceback to its end, when it does nothing any more."""
    writing_s: float = 1800.0
    """The same, however much it still writes."""
    hang_named_s: float = 6.0
    """From the last progress to the line that names who holds the job up."""
    stopped_s: float = 30.0
    """From a rank's SIGSTOP to the end of the job, when nobody continues it."""
    drain_s: float = 1.0
    """For output that a surviving grandchild may still write."""
    kill_s: float = 10.0
    """From the kill until a process counts as ended although the kernel still holds it."""
    parting_s: float = 60.0
    """The same after a script's own end, for memory and devices that take long to be freed."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Limits:
        """These two can be set, for tests and for people who debug by stopping a rank."""
        return cls(
            hang_named_s=_seconds(environ.get("TOPOUT_HANG_NAMED_S"), cls.hang_named_s),
            stopped_s=_seconds(environ.get("TOPOUT_STOPPED_LIMIT_S"), cls.stopped_s),
        )


Orders: TypeAlias = "Sequence[tuple[float, int]]"
"""(seconds from now, signal) in order of time."""

AFTER_A_FAILURE: Orders = ((0.0, signal.SIGTERM), (2.0, signal.SIGKILL))
AFTER_CTRL_C: Orders = ((0.0, signal.SIGINT), (3.0, signal.SIGTERM), (5.0, signal.SIGKILL))
AFTER_TERMINATE: Orders = ((0.0, signal.SIGTERM), (5.0, signal.SIGKILL))
AT_ONCE: Orders = ((0.0, signal.SIGKILL),)


def after_signal(number: int) -> Orders:
    return AFTER_CTRL_C if number == signal.SIGINT else AFTER_TERMINATE


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a job ended."""

    cause: Cause
    ends: tuple[RankEnd, ...]
    signal: int | None = None
    """The signal to the launcher, when that is the cause."""
    is_unwanted: bool = False
    """A signal asked the launcher to end the job, whatever else had ended it before."""
    warning: int | None = None
    """The signal by which the scheduler announced the end, here or at another launcher."""
    stopped_rank: int | None = None
    lost_hosts: tuple[str, ...] = ()
    is_stopped: bool = False
    """The scheduler announced the end, and a script that asks for it was told (`topout.should_stop`)."""


def _seconds(text: str | None, otherwise: float) -> float:
    try:
        return max(0.1, float(text)) if text else otherwise
    except ValueError:
        return otherwise
