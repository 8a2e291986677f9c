"""What has become of a submitted job, asked of the scheduler's own commands.

Not for what happens inside a run; `topout watch` reads that from the run folder, with no scheduler at hand.
"""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from topout.schema.errors import ExitCode, TopoutError
from topout.submit.job_folder import JobFolder
from topout.submit.queues import State, queue_of

_ANSWER_WITHIN_S = 30
_EVERY_S = 2.0
_NUM_LAST_LINES = 12


def state_of(job: JobFolder) -> State:
    """`unknown` when the scheduler's command is not here or does not answer."""
    job_id = job.job_id
    return "unknown" if job_id is None else state_of_id(job.scheduler, job_id)


def state_of_id(scheduler: str, job_id: str) -> State:
    queue = queue_of(scheduler)
    if not queue.state_command:
        return "unknown"
    command = [word.format(job=job_id) for word in queue.state_command]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_ANSWER_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    word = queue.read_state(answer.stdout, job_id)
    if word in queue.pending:
        return "pending"
    if word in queue.running:
        return "running"
    if word is None and answer.returncode != 0 and not _is_forgotten(answer.stderr):
        return "unknown"
    # finished jobs leave the queue, and most schedulers forget their numbers
    return "ended"


def await_run(
    job: JobFolder, say: Callable[[str], None], *, after: Path | None = None, every_s: float = _EVERY_S
) -> Path | None:
    """The newest run of the job, waited for while the job is in line; `after` is a run that is known already.

    None when the job has ended and there is no further run.
    """
    said = ""
    while True:
        # asked first: a run that begins between the two questions is found the next time
        state = state_of(job)
        runs = job.runs()
        if runs and runs[0] != after:
            return runs[0]
        text = f"job {job.job_id} is {_WORDS[state]}"
        if text != said and state != "ended":
            say(text)
            said = text
        if state == "ended":
            if after is not None:
                return None
            raise _ended_without_a_run(job)
        time.sleep(every_s)


_WORDS: dict[State, str] = {
    "pending": "pending",
    "running": "running; its run folder is not there yet",
    "unknown": "somewhere: the scheduler does not answer from here",
    "ended": "ended",
}


def _ended_without_a_run(job: JobFolder) -> TopoutError:
    try:
        last = job.output.read_text(errors="replace").rstrip().splitlines()[-_NUM_LAST_LINES:]
    except OSError:
        last = []
    return TopoutError(
        f"Job {job.job_id} ended before a run began.",
        why="its last words:\n" + "\n".join(f"       {line}" for line in last) if last else "it left no output",
        do=f"read {job.output} and {job.script}",
        exit_code=ExitCode.JOB_FAILED,
    )


def _is_forgotten(stderr: str) -> bool:
    text = stderr.lower()
    return any(words in text for words in ("invalid job id", "unknown job id", "not found", "has finished"))
