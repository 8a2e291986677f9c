"""`topout scale --submit`: one job of the site's scheduler for each point, waited for.

All repeats of a point run inside its job, so that they share its hosts. Jobs of different points may run at the same
time and on different hosts: what they share, such as a file system, they share in earnest.
"""

import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from topout.launch.target import with_target
from topout.schema.counted import counted
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.near import near
from topout.schema.run_folder import open_run
from topout.schema.spec import RunSpec, find_config
from topout.study.placement import nodes_for
from topout.study.scaling import Observed
from topout.study.scaling_runs import Account, Batch, Point, Say, seen
from topout.submit.follow import state_of
from topout.submit.job_folder import JobFolder
from topout.submit.scheduler import choose_scheduler, load_scheduler
from topout.submit.site import resolve_site, site_files
from topout.submit.submission import Submission, scripts_of, submit

EVERY_S = 10.0
"""Schedulers of large sites ask to be asked seldom."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command line says of the jobs."""

    script: Sequence[str]
    options: Sequence[str]
    """Of `topout scale`, the same for every point."""
    batch: Batch
    repeats: int
    runs: Path
    per_node: int | None
    time: str | None
    account: str | None
    partition: str | None


def submissions(points: Sequence[Point], asked: Asked) -> list[tuple[Point, Submission]]:
    with_target(RunSpec(script=asked.script[0]))
    flags = {"time": asked.time, "account": asked.account, "partition": asked.partition}
    site = resolve_site(flags, site_files(find_config(asked.script[0]), os.environ))
    if site.container:
        raise TopoutError(
            "A scaling study cannot be submitted into a container.",
            why="There the scheduler starts the ranks, and a point's runs need several starts.",
            do="topout submit each number of ranks, then topout scale RUN1 RUN2",
        )
    name, _ = choose_scheduler(site, os.environ, verb="scale")
    per_node = asked.per_node or site.gpus_per_node
    if not per_node:
        raise TopoutError(
            "How many ranks go on a node?",
            why="Neither --per-node nor gpus_per_node in site.toml says it.",
            do="--per-node 4",
        )
    # a study that was cut short is not gone on with: its points would be of two machines
    site = replace(site, requeue=False, warn_s=0)
    plugin = load_scheduler(name)
    found = []
    for point in points:
        nodes = nodes_for(point.ranks, per_node)
        submission = Submission(
            scheduler=name,
            plugin=plugin,
            site=site,
            nodes=nodes,
            ranks_per_node=point.ranks // nodes,
            verb="scale",
            options=(*_words(point, asked), *asked.options, "--runs", str(asked.runs.absolute())),
            script_words=tuple(asked.script),
            name=f"scale-{point.ranks}",
            folder=Path.cwd(),
            runs=asked.runs.absolute(),
        )
        found.append((point, submission))
    return found


def _words(point: Point, asked: Asked) -> list[str]:
    words = ["--runs-only", "--ranks", str(point.ranks), "--repeats", str(asked.repeats)]
    if point.batch is not None:
        words += ["--batch", str(point.batch)]
        words += [f"--batch-arg={asked.batch.option}", "--batch-of", asked.batch.counts] if asked.batch.option else []
    return words


def show(planned: Sequence[tuple[Point, Submission]]) -> int:
    for _, submission in planned:
        sys.stdout.buffer.write("".join(scripts_of(submission)).encode("utf-8", "surrogateescape"))
        sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()
    return ExitCode.FINE


def run_jobs(planned: Sequence[tuple[Point, Submission]], repeats: int, account: Account) -> list[Observed]:
    """What the jobs' runs gave; a point whose job made none is said and left out. Ctrl-C leaves the jobs alone."""
    jobs: list[tuple[Point, JobFolder]] = []
    try:
        for number, (point, submission) in enumerate(planned, 1):
            job = _in_line(point, submission, account, is_last_hope=number == len(planned) and not jobs)
            if job is not None:
                jobs.append((point, job))
        _await(jobs, repeats, account.say)
    except KeyboardInterrupt:
        if jobs:
            folders = shlex.join(near(job.path) for _, job in jobs)
            account.say(f"\nThe jobs stay in line. When they have ended:\n  topout scale {folders}")
        raise
    return [run for point, job in jobs for run in observed_of(job, point, account)]


def _in_line(point: Point, submission: Submission, account: Account, *, is_last_hope: bool) -> JobFolder | None:
    """None where the scheduler does not take it, such as more nodes than there are: the other points may do."""
    try:
        job, _ = submit(submission)
    except TopoutError as error:
        if is_last_hope:
            raise
        account.leave_out(f"{counted(point.ranks, 'rank')}: left out. {error.problem} {error.why}")
        return None
    account.say(f"{counted(point.ranks, 'rank'):>10}  job {job.job_id or '?'}  {near(job.path)}")
    return job


def _await(jobs: Sequence[tuple[Point, JobFolder]], repeats: int, say: Say) -> None:
    said = ""
    while True:
        states = {job.path: state_of(job) for _, job in jobs}
        waiting = [
            f"{counted(point.ranks, 'rank')} {_WORDS[states[job.path]]}"
            for point, job in jobs
            if not _is_over(job, states[job.path], repeats)
        ]
        if not waiting:
            return
        if (text := ", ".join(waiting)) != said:
            say(f"Waiting for {text}")
            said = text
        time.sleep(EVERY_S)


_WORDS = {
    "pending": "(in line)",
    "running": "(running)",
    "unknown": "(the scheduler does not answer)",
    "ended": "(ended)",
}


def _is_over(job: JobFolder, state: str, repeats: int) -> bool:
    """Where the scheduler does not answer, the runs say it themselves."""
    if state == "ended":
        return True
    return state == "unknown" and len([run for run in job.runs() if _has_ended(run)]) >= repeats


def _has_ended(run: Path) -> bool:
    try:
        return bool(open_run(run)[1].get("status") != "running")
    except TopoutError:
        return False


def _last_words(job: JobFolder) -> str:
    try:
        return job.output.read_text(errors="replace").strip().rpartition("\n")[2]
    except OSError:
        return ""


def observed_of(job: JobFolder, point: Point | None, account: Account) -> list[Observed]:
    """The runs of a job, in the order in which they were made; none is said with the job's last words."""
    folders = job.runs()[::-1]
    if not folders:
        ranks = f"{counted(point.ranks, 'rank')}: job" if point is not None else "job"
        last_words = _last_words(job) or "it left no output"
        account.leave_out(f"{ranks} {job.job_id} made no run and is left out: {last_words}")
    return [seen(folder, point, account.say) for folder in folders]
