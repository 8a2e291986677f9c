"""`topout watch`: a running job in one pane, all ranks, read from its run folder alone.

Watching costs the job nothing and needs no connection to it, only the folder. For where the time went, see `analyze`.
"""

import json
import os
import shlex
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.live import Live
from rich.table import Table

from topout.cli.kept_runs import newest_run, runs_root
from topout.cli.live import LiveRank, LiveRun, Watcher
from topout.schema.counted import counted
from topout.schema.errors import TopoutError
from topout.schema.run_folder import RUN_JSON, is_file, open_run

if TYPE_CHECKING:
    from topout.submit.job_folder import JobFolder

_EVERY_S = 1.0
_EVERY_S_IN_A_LOG = 60.0
_MOST_RANKS = 256
"""Looked at in a second: a file system that thousands of ranks share has other things to do."""
_MOST_NUMBERS = 5
"""Of jobs, in an error."""
_LINES_AROUND = 7
"""Of a pane, beside the ranks: title, header, rules, summary."""
_STYLES = {"failed": "bold red", "lost": "bold red", "silent": "yellow", "ended": "dim", "done": "green"}


def watch(
    run: Path | None = None,
    /,
    *,
    once: Annotated[bool, Parameter(negative="")] = False,
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Watch a running job: step, step time, input share and memory of every rank, until it ends.

    Parameters
    ----------
    run
        A run folder, or the folder or number of a submitted job; the newest run under topout-runs (or
        runs of topout.toml) when left out.
    once
        Print one frame and leave.
    json_output
        Print one frame as JSON and leave.
    """
    job = None if run is None else _job(run)
    if job is not None and (once or json_output) and not job.runs():
        return _tell_state(job, is_json=json_output)
    path = _awaited(job, None) if job is not None else run if run is not None else newest_run()
    while path is not None:
        _watch(path, once=once, json_output=json_output)
        # a job that stopped on request goes on in another run
        goes_on = job is not None and not once and not json_output and _has_stopped(path)
        path = _awaited(job, path) if job is not None and goes_on else None
    return 0


def _watch(path: Path, *, once: bool, json_output: bool) -> None:
    watcher = Watcher(path)
    console = Console()
    if json_output:
        print(json.dumps(asdict(watcher.look())))
        return
    if once:
        last = watcher.look()
        console.print(pane(last, most_rows=None))
    else:
        last = _follow(watcher, console) if console.is_terminal else _follow_in_a_log(watcher)
    if last.note is not None:
        print(f"Note    {last.note}", file=sys.stderr)
    print(f"Next    topout analyze {shlex.quote(str(path))}", file=sys.stderr)


def _job(run: Path) -> "JobFolder | None":
    from topout.submit.job_folder import find_job

    # where `topout submit` puts jobs from this folder
    runs = runs_root()
    found = None if is_file(run / RUN_JSON) else find_job(run, runs)
    if found is None and len(run.parts) == 1 and not os.path.lexists(run):
        raise _nothing_to_watch(run, runs)
    return found


def _nothing_to_watch(run: Path, runs: Path) -> TopoutError:
    from topout.submit.job_folder import JOBS, jobs

    # the last of a job's numbers is the one under which it goes on
    numbers = [job.job_id for job in jobs(runs) if job.job_id]
    kept = f"those kept there: {', '.join(numbers[-_MOST_NUMBERS:])}" if numbers else "none is kept there"
    return TopoutError(
        f"There is neither a run folder {run} nor a job {run}.",
        why=f"no such folder, and no job of that number in {runs / JOBS}, where topout submit keeps its jobs ({kept})",
        do="watch from the folder in which the job was submitted, or name its run folder; topout watch alone takes the "
        "newest run",
    )


def _awaited(job: "JobFolder", after: Path | None) -> Path | None:
    from topout.submit.follow import await_run

    return await_run(job, lambda text: print(text, file=sys.stderr, flush=True), after=after)


def _tell_state(job: "JobFolder", *, is_json: bool) -> int:
    from topout.submit.follow import state_of

    state = state_of(job)
    print(json.dumps({"job": job.job_id, "status": state}) if is_json else f"job {job.job_id} is {state}")
    return 0


def _has_stopped(path: Path) -> bool:
    from topout.launch.stopping import STOPPED_EXIT_CODE

    return bool(open_run(path)[1].get("exit_code") == STOPPED_EXIT_CODE)


def _follow(watcher: Watcher, console: Console) -> LiveRun:
    """Until the job has ended; the last look."""
    live_run = watcher.look()
    with Live(pane(live_run, most_rows=_room(console)), console=console, auto_refresh=False) as live:
        while live_run.status == "running":
            time.sleep(_EVERY_S)
            live_run = watcher.look(_MOST_RANKS)
            live.update(pane(live_run, most_rows=_room(console)), refresh=True)
    return live_run


def _follow_in_a_log(watcher: Watcher) -> LiveRun:
    """Between two lines nothing is looked at but whether the job has ended."""
    while True:
        live_run = watcher.look()
        print(summary(live_run), flush=True)
        if live_run.status != "running":
            return live_run
        next_line = time.monotonic() + _EVERY_S_IN_A_LOG
        while time.monotonic() < next_line and watcher.is_running():
            time.sleep(_EVERY_S)


def _room(console: Console) -> int:
    return max(3, console.size.height - _LINES_AROUND)


def pane(live_run: LiveRun, *, most_rows: int | None) -> Table:
    """All ranks, or as many as fit: those in trouble first, then the ones that hold the others up."""
    ranks = list(live_run.ranks)
    if most_rows is not None and len(ranks) > most_rows:
        ranks = sorted(sorted(ranks, key=_notability)[:most_rows], key=lambda rank: rank.rank)
    left_out = len(live_run.ranks) - len(ranks)
    caption = summary(live_run) + (f"; {left_out} ranks like these not shown" if left_out else "")
    table = Table(title=live_run.run, caption=caption, title_justify="left", caption_justify="left")
    for name in ("rank", "host", "step", "step time", "input", "memory", "status"):
        table.add_column(name, justify="left" if name in ("host", "status") else "right")
    for rank in ranks:
        table.add_row(*_cells(rank), style=_STYLES.get(rank.status))
    return table


def summary(live_run: LiveRun) -> str:
    """One line: how far, how fast, and who is missing."""
    steps = [rank.step for rank in live_run.ranks if rank.step is not None]
    times_ns = [rank.step_ns for rank in live_run.ranks if rank.step_ns is not None]
    parts = [live_run.status, f"{counted(len(live_run.ranks), 'rank')}"]
    if steps:
        parts.append(f"step {min(steps)}" if min(steps) == max(steps) else f"steps {min(steps)} to {max(steps)}")
    if times_ns:
        parts.append(f"{_milliseconds(int(statistics.median(times_ns)))} a step")
    for status in ("failed", "silent"):
        troubled = [rank.rank for rank in live_run.ranks if rank.status == status]
        if troubled:
            parts.append(f"{status}: {', '.join(map(str, troubled[:8]))}{', …' if len(troubled) > 8 else ''}")
    return "  ".join(parts)


def _notability(rank: LiveRank) -> tuple[bool, int, float]:
    """What holds others up has made the fewest steps, or waits the most for its input."""
    return rank.status not in ("failed", "silent"), rank.step or 0, -(rank.input_share or 0.0)


def _cells(rank: LiveRank) -> list[str]:
    status = f"silent for {rank.silent_s:.0f} s" if rank.status == "silent" and rank.silent_s else rank.status
    memory = _gigabytes(rank.memory_bytes)
    if rank.gpu_memory_bytes is not None:
        memory += f" + {_gigabytes(rank.gpu_memory_bytes)} GPU"
    return [
        str(rank.rank),
        rank.host,
        "–" if rank.step is None else str(rank.step),
        "–" if rank.step_ns is None else _milliseconds(rank.step_ns),
        "–" if rank.input_share is None else f"{rank.input_share:.0%}",
        memory,
        status,
    ]


def _milliseconds(duration_ns: int) -> str:
    return f"{duration_ns / 1e6:.1f} ms" if duration_ns < 999.95e6 else f"{duration_ns / 1e9:.2f} s"


def _gigabytes(num_bytes: int | None) -> str:
    return "–" if num_bytes is None else f"{num_bytes / 1e9:.2f} GB"
