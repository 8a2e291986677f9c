"""What a job script and its follower must know of each scheduler, beyond the directives of its plug-in.

A table to check against the manuals: how a job gets in line again, how another waits for its success, what its states
are called. A scheduler that is not listed (a plug-in from outside) submits jobs, but neither requeues nor chains them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from topout.launch.stopping import STOPPED_EXIT_CODE

State = Literal["pending", "running", "ended", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Queue:
    """One scheduler's ways."""

    directives: tuple[str, ...] = ()
    """Which a bash script needs in any case."""
    parallel_line: str = r"(?!)"
    """Pattern of a site's line that asks for several nodes, and is none of a job on one."""
    warns: bool = True
    """Is asked to warn before the time limit; otherwise the script looks at the clock."""
    hides_hosts: bool = False
    """Inside an image nothing tells a task the job's first host; the script, which runs there, does."""
    requeue: str | None = None
    """Shell line with which a running job gets in line again."""
    requeue_directives: tuple[str, ...] = ()
    resubmit: tuple[str, ...] = ()
    """Words that submit a script from inside a job, and are preferred to `requeue`. The job then goes on under another
    number, so that nothing can wait for the old one."""
    after: tuple[str, ...] = ()
    """Directives of a job that waits for the success of another, `{job}`; empty: it cannot."""
    state_command: tuple[str, ...] = ()
    read_state: Callable[[str, str], str | None] = lambda output, job: None
    """The scheduler's word for a job's state, out of the command's output; None: the job is not in it."""
    pending: frozenset[str] = frozenset()
    running: frozenset[str] = frozenset()


def _first_word(output: str, job: str) -> str | None:
    words = output.split()
    return words[0] if words else None


def _pbs_column(output: str, job: str) -> str | None:
    """`1234.server  name  user  00:00:01 R queue`; the server's name may be cut short."""
    number = job.partition(".")[0]
    rows = [line.split() for line in output.splitlines() if line.partition(".")[0].strip() == number]
    return rows[0][-2] if rows and len(rows[0]) >= 3 else None


def _sge_column(output: str, job: str) -> str | None:
    """`12 0.555 name user qw 11/15/2026 …`; a job of several queues has several lines."""
    rows = [line.split() for line in output.splitlines()]
    states = [row[4] for row in rows if len(row) > 4 and row[0] == job]
    return states[0] if states else None


QUEUES = {
    "slurm": Queue(
        requeue='scontrol requeue "$SLURM_JOB_ID"',
        after=("#SBATCH --dependency=afterok:{job}", "#SBATCH --kill-on-invalid-dep=yes"),
        state_command=("squeue", "--noheader", "--states=all", "--format=%T", "--jobs={job}"),
        read_state=_first_word,
        pending=frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}),
        running=frozenset(
            {"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"}
        ),
    ),
    "lsf": Queue(
        # -wa signals every process of the job, and ranks end by it
        warns=False,
        # the queue takes back a job that ends with one of these codes
        requeue=f"exit {STOPPED_EXIT_CODE}",
        requeue_directives=(f'#BSUB -Q "{STOPPED_EXIT_CODE}"',),
        after=('#BSUB -w "done({job})"',),
        state_command=("bjobs", "-noheader", "-o", "stat", "{job}"),
        read_state=_first_word,
        pending=frozenset({"PEND", "PSUSP", "WAIT"}),
        running=frozenset({"RUN", "USUSP", "SSUSP", "PROV", "UNKWN"}),
    ),
    "pbs": Queue(
        # it knows SIGTERM alone, for the time limit as for qdel
        warns=False,
        hides_hosts=True,
        # qrerun is for operators
        resubmit=("qsub",),
        after=("#PBS -W depend=afterok:{job}",),
        state_command=("qstat", "{job}"),
        read_state=_pbs_column,
        pending=frozenset({"Q", "H", "W", "T", "B"}),
        running=frozenset({"R", "E", "S", "U"}),
    ),
    "sge": Queue(
        # else the queue's own shell reads the script, often csh
        directives=("#$ -S /bin/bash",),
        parallel_line=r"#\$\s+-pe\s",
        # -notify warns as early as the queue likes, of suspensions too, and every process: `timeout` would end by it
        warns=False,
        requeue="exit 99",
        after=("#$ -hold_jid {job}",),
        state_command=("qstat",),
        read_state=_sge_column,
        pending=frozenset({"qw", "hqw", "hRwq", "Rq", "Eqw", "w", "h"}),
        running=frozenset({"r", "t", "Rr", "Rt", "hr", "s", "S", "T", "dr", "dt", "ts"}),
    ),
    "flux": Queue(
        # its signal goes to the brokers of the job's own instance
        warns=False,
        hides_hosts=True,
        # a job is an instance of its own, and its queue another one
        resubmit=("flux", "--parent", "batch"),
        after=("#FLUX: --dependency=afterok:{job}",),
        state_command=("flux", "jobs", "--no-header", "--format={{state}}", "{job}"),
        read_state=_first_word,
        pending=frozenset({"NEW", "DEPEND", "PRIORITY", "SCHED"}),
        running=frozenset({"RUN", "CLEANUP"}),
    ),
}


def queue_of(scheduler: str, nodes: int = 1) -> Queue:
    queue = QUEUES.get(scheduler, Queue(warns=False))
    if scheduler == "sge" and nodes > 1:
        # seen on 8.1.9: a requeued job of several hosts waits for ever for their "clean up of a previous run"
        # with -V, an evaluation on one host would take this job's host file for its own
        return replace(queue, resubmit=("env", "-u", "PE_HOSTFILE", "qsub", "-terse"))
    return queue
