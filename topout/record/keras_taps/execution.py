"""One call of Keras' train function, cut into waiting for input and computing.

    wait    = from where the step before ended, or the batch was asked for if that is later, until the batch is there
    compute = from there until the step ends

With `steps_per_execution` a call holds several steps, and Keras 3 asks for the next batch while a step still computes:
then only the part of the asking that outlasts the step is waiting. Pure arithmetic; who stamped is told elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from topout.schema.event import NOT_GIVEN


@dataclass(frozen=True, kw_only=True)
class Pull:
    """A batch was asked for, and came."""

    start_ns: int
    end_ns: int
    num_samples: int = NOT_GIVEN
    """0: the data had come to an end."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """A call of the train function as Python saw it from outside."""

    start_ns: int
    end_ns: int
    is_on_main_thread: bool = True


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of an execution."""

    wait: Pull | None
    """The part of its pull that held the step up, with the samples it brought; None when no pull was seen."""
    compute_start_ns: int
    end_ns: int


def cut(execution: Execution, pulls: Sequence[Pull], step_ends_ns: Sequence[int] = ()) -> list[Step]:
    """Steps in order of time. Without pulls the whole call is one step that computes.

    `step_ends_ns` are stamps at the end of each step's computing; where they are missing, a step ends where the next
    batch is asked for. The last step ends with the call.
    """
    brought = sorted((pull for pull in pulls if pull.num_samples != 0), key=lambda pull: pull.start_ns)
    if not brought:
        return [Step(wait=None, compute_start_ns=execution.start_ns, end_ns=execution.end_ns)]
    ends = sorted(step_ends_ns) if len(step_ends_ns) == len(brought) else [pull.start_ns for pull in brought[1:]]
    ends = [*ends[: len(brought) - 1], execution.end_ns]
    steps = []
    before_ns = execution.start_ns
    for pull, end_ns in zip(brought, ends, strict=True):
        start_ns = max(before_ns, pull.start_ns)
        there_ns = max(start_ns, pull.end_ns)
        steps.append(
            Step(
                wait=Pull(start_ns=start_ns, end_ns=there_ns, num_samples=pull.num_samples),
                compute_start_ns=there_ns,
                end_ns=max(end_ns, there_ns),
            )
        )
        before_ns = steps[-1].end_ns
    return steps
