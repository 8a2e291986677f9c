"""`topout calibrate`: a recorded run becomes a description that `topout simulate` takes."""

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from topout.cli.diagnoses import diagnosis_for
from topout.cli.endings import ending_of
from topout.cli.kept_runs import newest_run
from topout.cli.page_files import check_file, write_file
from topout.report.json_report import encode
from topout.schema.errors import ExitCode
from topout.schema.run_folder import RunFolder, open_run
from topout.study.calibrate import CALIBRATION_VERSION
from topout.study.calibrate import calibrate as describe_run

STILL_RUNNING = "The job is still running; the figures are of what is recorded so far."


def calibrate(run: Path | None = None, /, *, doctor: Path | None = None, out: Path | None = None) -> int:
    """Describe a recorded job and its machine by numbers with 80 % ranges, for topout simulate.

    Parameters
    ----------
    run
        The run folder; the newest under topout-runs (or runs of topout.toml) when left out.
    doctor
        What topout doctor --json wrote, for links; the newest of the run's hosts in topout-runs/doctor when left out.
    out
        Where to write, a .json file or a folder; calibration.json in the run folder when left out.
    """
    folder, content = open_run(run if run is not None else newest_run())
    target = check_file(out, "--out", "calibration.json", _why_kept) or folder.path / "calibration.json"
    diagnosis, left_out = diagnosis_for(content, doctor)
    found = describe_run(folder, diagnosis)
    notes = [*_how_it_ended(folder, content), *left_out, *found.notes]
    document = {"version": CALIBRATION_VERSION, "job": found.job, "system": found.system, "notes": notes}
    write_file(target, encode(document), "--out calibration.json")
    print(target)
    if run is None:
        print(f"Run     {folder.path}", file=sys.stderr)
    for note in notes:
        print(f"Note    {note}", file=sys.stderr)
    named = shlex.quote(str(target))
    print(f"Next    topout simulate {named} --system {named} --nodes 1..16", file=sys.stderr)
    return ExitCode.FINE


def _how_it_ended(folder: RunFolder, run: Mapping[str, Any]) -> list[str]:
    ending = ending_of(folder, run)
    if ending.note is not None:
        return [ending.note]
    return [STILL_RUNNING] if ending.status == "running" else []


def _why_kept(path: Path) -> str | None:
    """Another calibration may be replaced, and nothing else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    is_calibration = isinstance(found, dict) and {"version", "job", "system"} <= found.keys()
    return None if is_calibration else "It is no calibration, and would be lost."
