"""How a run has ended that did not write it: told by its launcher's process, the scheduler, or a long silence.

Not for runs that wrote how they ended; of those run.json says all there is.
"""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topout.schema.launcher_process import is_launcher_alive
from topout.schema.run_folder import LOST, RUN_JSON, RunFolder

if TYPE_CHECKING:
    from topout.submit.job_folder import JobFolder

SILENT = "silent"
"""Nothing was written for long, and nobody who knows more can be asked from here."""
_SILENT_AFTER_S = 300.0
"""A launcher samples counters every ten seconds at least; file systems and clocks of other hosts may lag minutes."""
_OF_RECORDED = "the figures are of what was recorded."


@dataclass(frozen=True)
class Ending:
    """What has become of a run."""

    status: str
    """As in run.json, or `lost`, or `silent`."""
    note: str | None = None
    """A sentence on the latter two."""


def ending_of(folder: RunFolder, run: Mapping[str, Any]) -> Ending:
    """`run` as `open_run` gave it. Asks the scheduler where this is the only way to know."""
    status = str(run.get("status") or "unknown")
    launcher = _launcher_words(run)
    if status == LOST:
        return Ending(LOST, f"{launcher} was killed, or could not write how the run ended; {_OF_RECORDED}")
    if status != "running" or is_launcher_alive(run.get("launcher")):
        return Ending(status)
    silent_s = _silent_s(folder)
    if silent_s < _SILENT_AFTER_S or not _is_recorded(run):
        return Ending(status)
    job = _job_of(folder, run)
    state = "unknown" if job is None else _state_of(job)
    if state == "running":
        return Ending(status)
    if job is not None and state != "unknown":
        has_ended = "has ended" if state == "ended" else "waits in line again"
        return Ending(LOST, f"Job {job.job_id} {has_ended}, and its run did not: it was killed; {_OF_RECORDED}")
    silence = f"Nothing was written into the run folder for {silent_s / 60:,.0f} min"
    return Ending(SILENT, f"{silence}. {launcher} cannot be seen from here: it may have been killed; {_OF_RECORDED}")


def _is_recorded(run: Mapping[str, Any]) -> bool:
    """Else nobody writes now and then, and silence says nothing."""
    spec = run.get("spec")
    return not isinstance(spec, dict) or spec.get("record") is not False


def _launcher_words(run: Mapping[str, Any]) -> str:
    launcher = run.get("launcher")
    if not isinstance(launcher, dict):
        return "The launcher"
    return f"The launcher (process {launcher.get('pid')} on {launcher.get('host')})"


def _silent_s(folder: RunFolder) -> float:
    """Since the run wrote anything; what verbs that read it write beside does not count."""
    newest = 0.0
    for place in (folder.text, folder.inside("logs")):
        try:
            with os.scandir(place) as entries:
                own = [entry for entry in entries if entry.name == RUN_JSON or entry.name.startswith("rank-")]
        except OSError:
            continue
        for entry in own:
            # one that begins anew is gone for a moment
            with suppress(OSError):
                newest = max(newest, entry.stat().st_mtime)
    return time.time() - newest if newest else 0.0


def _job_of(folder: RunFolder, run: Mapping[str, Any]) -> "JobFolder | None":
    """The folder may have another name on the machine that reads it."""
    from topout.submit.job_folder import JOBS, JobFolder

    job = run.get("job")
    if not isinstance(job, str) or not job:
        return None
    for path in (Path(job), folder.path.resolve().parent / JOBS / Path(job).name):
        found = JobFolder(path)
        if found.job_id is not None:
            return found
    return None


def _state_of(job: "JobFolder") -> str:
    from topout.submit.follow import state_of

    return state_of(job)
