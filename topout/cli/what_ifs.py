"""What-ifs of `simulate` and `plan`, all of them, with a word on those that change nothing."""

from collections.abc import Sequence

from topout.study.description import Ranged
from topout.study.job import Job
from topout.study.system import System
from topout.study.what_if import apply


def apply_all(
    assignments: Sequence[str], job: Ranged[Job], system: Ranged[System]
) -> tuple[Ranged[Job], Ranged[System], list[str]]:
    """Job and system with all of them, one on top of the other, and notes."""
    notes = []
    for assignment in assignments:
        before = job, system
        job, system = apply(assignment, *before)
        if (job, system) == before:
            notes.append(f"--what-if {assignment} changes nothing: it is so already.")
        elif (job.value, system.value) == (before[0].value, before[1].value):
            notes.append(f"--what-if {assignment} is the value already; only its range is left out.")
    return job, system, notes
