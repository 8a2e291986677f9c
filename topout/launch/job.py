"""A job from spec to exit code: where it runs, who takes part, and its rounds when this process leads.

Not for explaining how fast it was; that is read from the run folder afterwards.
"""

from __future__ import annotations

import os

from topout.launch.bounds import check_numbers
from topout.launch.detect import check_world, detect_allocation
from topout.launch.job_result import JobResult
from topout.launch.signals import EndedByError, LauncherSignals
from topout.launch.target import with_target
from topout.launch.terminal import Terminal
from topout.launch.variables import is_this_host
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.spec import RunSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from topout.launch.allocation import Allocation
    from topout.launch.company import Company

__all__ = ["JobResult", "assemble", "run_job"]


def run_job(spec: RunSpec, terminal: Terminal, *, forks: bool = False) -> JobResult:
    """Runs the job to its end, on one host or on all of the allocation.

    With `forks`, ranks are forked and `BecomeRank` passes through the caller in each of them (see `becoming`).
    """
    check_numbers(spec)
    spec = with_target(spec)
    with LauncherSignals() as signals:
        crew = assemble(spec, signals, terminal.say)
        if isinstance(crew, int):
            return JobResult(exit_code=crew, status="followed", folder=None)
        exit_code = int(ExitCode.ENVIRONMENT)
        # those that only follow do not need it
        from topout.launch.rounds import Rounds

        try:
            result = Rounds(spec, crew, terminal, forks).run(signals)
            exit_code = result.exit_code
            return result
        except TopoutError as error:
            exit_code = int(error.exit_code)
            raise
        except EndedByError as error:
            exit_code = 128 + error.number
            raise
        finally:
            crew.close(exit_code)


def assemble(spec: RunSpec, signals: LauncherSignals, say: Callable[[str], None]) -> Company | int:
    """Everybody who runs this job, or the exit code of a job that this process only followed."""
    allocation = detect_allocation(os.environ)
    if allocation is not None and allocation.task is not None and allocation.task.world_size > 1:
        if spec.num_ranks is not None:
            # before anybody waits for the others
            check_world(allocation, spec.num_ranks)
        from topout.launch.tasks import follow_or_lead

        return follow_or_lead(spec, allocation, allocation.task, signals, say)
    if allocation is not None and allocation.task is None and not is_this_host_alone(allocation):
        from topout.launch.starters import start_through_scheduler

        return start_through_scheduler(spec, allocation, signals, say)
    # a file that is for the cluster may say it, too, where a rehearsal or an evaluation has one host
    if spec.nodes is not None and spec.nodes > 1 and spec.origins.get("nodes") == "command line":
        raise TopoutError(
            f"--nodes {spec.nodes} is more than there are.",
            why="the job has this host alone" if allocation is not None else "this is no scheduler's job, so one host",
            do=f"leave out --nodes, or ask the scheduler for {spec.nodes}: topout submit --nodes {spec.nodes} …",
        )
    from topout.launch.company import alone

    if spec.interface is not None:
        from topout.launch.rendezvous import check_interface

        check_interface(spec, is_on_one_host=True)
    return alone(allocation)


def is_this_host_alone(allocation: Allocation) -> bool:
    """An allocation of one host needs nobody started elsewhere, unless this is its batch or login host."""
    return not allocation.hosts or (len(allocation.hosts) == 1 and is_this_host(allocation.hosts[0]))
