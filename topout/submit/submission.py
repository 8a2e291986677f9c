"""One submission: what is asked of the scheduler, the scripts, and the way into the queue.

Nothing of the user's is overwritten: every submission gets a folder of its own, and one that the scheduler refuses
leaves none behind. Not for parsing; `cli.submit` does that.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from types import ModuleType

from topout.launch.job_request import JobRequest
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.run_folder import create_run_folder, next_run_folder
from topout.submit.duration import parse_duration
from topout.submit.job_folder import JOBS, JobFolder
from topout.submit.job_script import in_container, job_script
from topout.submit.queues import Queue, queue_of
from topout.submit.quoting import joined
from topout.submit.site import DEFAULT_WARN_S, Site

_ANSWER_WITHIN_S = 120
_JOB_ID_LATER = "JOB_ID"
"""Stands for the number of a job that is not submitted yet, in what --dry-run shows."""


class _RefusedError(TopoutError):
    """The scheduler did not take the job, which therefore is not in line."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """What a user asked of `topout submit`, all values settled."""

    scheduler: str
    plugin: ModuleType
    """Its file in `launch/schedulers`."""
    site: Site
    nodes: int
    ranks_per_node: int | None
    """None: `topout run` decides on the nodes."""
    options: tuple[str, ...]
    """Of `topout run`."""
    script_words: tuple[str, ...]
    """The script and its arguments."""
    name: str
    folder: Path
    """In which the job runs."""
    runs: Path
    verb: str = "run"
    """Of topout, which the job calls with the options."""
    outlives_nodes: bool = False
    evaluation_words: tuple[str, ...] = ()
    """A script and its arguments that run on one node after a success."""

    @property
    def queue(self) -> Queue:
        return queue_of(self.scheduler, self.nodes)

    @property
    def time_s(self) -> int:
        if not self.site.time:
            raise TopoutError(
                "How long may the job run?",
                why="neither --time nor time in site.toml says it, and schedulers' own limits differ widely",
                do=f"topout {'submit' if self.verb == 'run' else f'{self.verb} --submit'} --time 2h …",
            )
        return parse_duration(self.site.time)

    @property
    def warn_s(self) -> int | None:
        """A warning that takes half of the time is none, unless somebody asked for it."""
        asked_s = self.site.warn_s
        if asked_s is None:
            return DEFAULT_WARN_S if self.time_s > 2 * DEFAULT_WARN_S else None
        if asked_s >= self.time_s:
            raise TopoutError(
                f"A warning {asked_s} s before the end of {self.time_s} s is not possible.",
                why=f"warn_s comes from {self.site.origins.get('warn_s')}",
                do="ask for more time, or set warn_s = 0",
            )
        return asked_s or None


def topout_words(site: Site) -> list[str]:
    """How topout is called inside the job.

    Without an environment of its own the job uses the one that submits it, by its path. Inside an image the PATH is the
    image's, and a module is found where a script may not be.
    """
    if site.container:
        return ["python3", "-P", "-m", "topout"]
    if site.venv or site.conda:
        return ["topout"]
    program = Path(sys.executable).with_name("topout")
    return [str(program)] if os.access(program, os.X_OK) else [sys.executable, "-P", "-m", "topout"]


def training_script(submission: Submission, job: JobFolder) -> str:
    site, queue = submission.site, submission.queue
    request = _request(submission, job)
    run = [*topout_words(site), submission.verb, *submission.options, *_script_words(submission.script_words)]
    return job_script(
        submission.plugin.directives(request),
        site,
        _command(submission, request, run),
        folder=submission.folder,
        queue=queue,
        job=job.path,
        is_requeued=request.is_requeued,
        warn_after_s=None if queue.warns or submission.warn_s is None else submission.time_s - submission.warn_s,
        then=_evaluation_at_the_end(submission, job),
    )


def evaluation_script(submission: Submission, job: JobFolder, after: str | None) -> str:
    """A job of one rank, which waits for the success of job `after` when that is given."""
    site, queue = submission.site, submission.queue
    waits = [line.format(job=after) for line in queue.after] if after is not None else []
    training = _request(submission, job)
    request = replace(
        training,
        name=f"{submission.name}-eval",
        nodes=1,
        tasks_per_node=None if training.wants_whole_nodes else 1,
        gpus_per_node=1 if site.gpus_per_node else None,
        output=job.eval_output,
        warn_s=None,
        is_requeued=False,
        outlives_nodes=False,
        switches=None,
        extra=(*queue.directives, *waits, *(line for line in site.lines if not re.match(queue.parallel_line, line))),
    )
    # the nodes as well: topout.toml may name those of the training, and under jsrun its host is not the script's
    options = ["-n", "1", "--nodes", "1", "--runs", str(submission.runs), *_packs(submission.options)]
    run = [*topout_words(site), "run", *options, *_script_words(submission.evaluation_words)]
    return job_script(
        submission.plugin.directives(request),
        site,
        _command(submission, request, run),
        folder=submission.folder,
        queue=queue,
        is_requeued=False,
    )


def _packs(options: tuple[str, ...]) -> list[str]:
    """The data may lie in packs alone."""
    return [word for name, value in pairwise(options) if name == "--packs" for word in (name, value)]


def _request(submission: Submission, job: JobFolder) -> JobRequest:
    site, queue = submission.site, submission.queue
    is_requeued = site.requeue and submission.warn_s is not None
    return JobRequest(
        name=submission.name,
        nodes=submission.nodes,
        tasks_per_node=submission.ranks_per_node,
        gpus_per_node=site.gpus_per_node or None,
        cpus_per_task=site.cpus_per_task,
        time_s=submission.time_s,
        account=site.account or None,
        partition=site.partition or None,
        qos=site.qos or None,
        memory=site.memory or None,
        output=job.output,
        warn_s=submission.warn_s if queue.warns else None,
        is_requeued=is_requeued,
        outlives_nodes=submission.outlives_nodes,
        switches=site.switches,
        extra=(*queue.directives, *(queue.requeue_directives if is_requeued else ()), *site.lines),
        working_folder=submission.folder,
    )


def scripts_of(submission: Submission) -> list[str]:
    """The scripts that would be submitted; nothing is written."""
    job = JobFolder(Path(next_run_folder(submission.runs / JOBS, submission.name)))
    scripts = [training_script(submission, job)]
    if submission.evaluation_words:
        after = None if _evaluation_at_the_end(submission, job) else _JOB_ID_LATER
        scripts.append(evaluation_script(submission, job, after))
    return scripts


def submit(submission: Submission) -> tuple[JobFolder, str | None]:
    """(the job, the number of the evaluation's job when that is in line already)."""
    # what cannot be written need not be begun
    scripts_of(submission)
    job = JobFolder(create_run_folder(submission.runs / JOBS, submission.name).path)
    at_the_end = _evaluation_at_the_end(submission, job)
    try:
        _write_job(submission, job)
        if at_the_end:
            _write_script(job.eval_script, evaluation_script(submission, job, None))
    except BaseException as error:
        shutil.rmtree(job.path, ignore_errors=True)
        if isinstance(error, OSError):
            raise _unwritable(job, error) from error
        raise
    try:
        job_id = _send(submission, job.script)
    except _RefusedError:
        # whatever else happens, the job may be in line and needs its folder
        shutil.rmtree(job.path, ignore_errors=True)
        raise
    _keep_number(job, job_id)
    if not submission.evaluation_words or at_the_end:
        return job, None
    return job, _send_evaluation(submission, job, job_id)


def _keep_number(job: JobFolder, job_id: str) -> None:
    try:
        job.ids_file.write_text(f"{job_id}\n")
    except OSError as error:
        raise TopoutError(
            f"{f'Job {job_id}' if job_id else 'The job'} is submitted, and topout cannot keep its number.",
            why=f"{job.ids_file}: {error.strerror or error}",
            do="make room, then ask the scheduler about the job; do not submit it again",
            exit_code=ExitCode.ENVIRONMENT,
        ) from error


def _send_evaluation(submission: Submission, job: JobFolder, job_id: str) -> str:
    """The training is in line by now, and every error says so: nobody shall submit it twice."""
    if not job_id or not submission.queue.after:
        raise _no_evaluation(
            job_id,
            "nothing can wait for it: its number could not be read, or its scheduler is not known to chain jobs",
            f"submit the evaluation when {job.script} has succeeded",
        )
    again = joined(submission.plugin.submit_command(job.eval_script))
    try:
        _write_script(job.eval_script, evaluation_script(submission, job, job_id))
        return _send(submission, job.eval_script)
    except OSError as error:
        raise _no_evaluation(job_id, error.strerror or str(error), "submit it by hand after the training") from error
    except _RefusedError as error:
        raise _no_evaluation(job_id, error.why, f"mend what it names in {job.eval_script}, then {again}") from error
    except TopoutError as error:
        raise TopoutError(
            f"Job {job_id} is submitted, its evaluation perhaps.", why=error.why, do=error.do, exit_code=error.exit_code
        ) from error


def _no_evaluation(job_id: str, why: str, do: str) -> TopoutError:
    return TopoutError(
        f"{f'Job {job_id}' if job_id else 'The job'} is submitted, its evaluation is not.",
        why=why,
        do=do,
        exit_code=ExitCode.ENVIRONMENT,
    )


def _write_job(submission: Submission, job: JobFolder) -> None:
    job.write({
        "scheduler": submission.scheduler,
        "submitted_at": datetime.now().astimezone().isoformat(timespec="seconds"),
        "nodes": submission.nodes,
        "time_s": submission.time_s,
        "script": list(submission.script_words),
        "options": list(submission.options),
        "folder": str(submission.folder),
        "origins": submission.site.origins,
    })  # fmt: skip
    _write_script(job.script, training_script(submission, job))


def _command(submission: Submission, request: JobRequest, run: list[str]) -> str:
    inside = in_container(submission.site, run, has_gpus=bool(request.gpus_per_node))
    if not submission.site.container:
        return inside
    # an image has none of the scheduler's commands, so there the scheduler starts every rank
    return f"{joined(submission.plugin.task_prefix(request))} {inside}"


def _script_words(words: tuple[str, ...]) -> list[str]:
    """A script whose name starts with a dash is still a script."""
    return ["--", *words] if words and words[0].startswith("-") else list(words)


def _evaluation_at_the_end(submission: Submission, job: JobFolder) -> str | None:
    """Where a stopped job goes on under another number, it submits its evaluation itself, once it has succeeded."""
    queue = submission.queue
    if not submission.evaluation_words or not (submission.site.requeue and submission.warn_s and queue.resubmit):
        return None
    return f"{joined(queue.resubmit)} {joined([str(job.eval_script)])}"


def _write_script(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    path.chmod(0o755)


def _send(submission: Submission, script: Path) -> str:
    command = submission.plugin.submit_command(script)
    try:
        answer = subprocess.run(
            command,
            cwd=submission.folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_WITHIN_S,
            check=False,
        )
    except OSError as error:
        raise _refused(command, str(error)) from error
    except subprocess.TimeoutExpired as error:
        raise TopoutError(
            f"{submission.plugin.TITLE} did not answer; the job may be in line all the same.",
            why=f"a busy scheduler may take a job after the {error.timeout:g} s that topout waits for its answer",
            do=f"look at your jobs before you submit again; if it is not there, {joined(command)}",
            exit_code=ExitCode.ENVIRONMENT,
        ) from error
    if answer.returncode != 0:
        raise _refused(command, (answer.stderr or answer.stdout).strip() or f"exit code {answer.returncode}")
    job_id = submission.plugin.read_job_id(answer.stdout)
    # the job is in line; that its number cannot be read must not make anyone submit it again
    return str(job_id) if job_id is not None else ""


def _refused(command: list[str], why: str) -> TopoutError:
    return _RefusedError(
        f"{command[0]} did not take the job.",
        why=why.replace("\n", "\n       "),
        do="mend what it names, on the command line or in site.toml; --dry-run shows the script",
        exit_code=ExitCode.ENVIRONMENT,
    )


def _unwritable(job: JobFolder, error: OSError) -> TopoutError:
    return TopoutError(
        f"The job cannot be kept in {job.path}.",
        why=error.strerror or str(error),
        do="choose a writable place with --runs DIR",
        exit_code=ExitCode.ENVIRONMENT,
    )
