"""`topout calibrate`: a recorded run becomes a description that `topout simulate` takes."""

import json
import sys
from pathlib import Path
from typing import Any

from topout.cli.analyze import newest_run
from topout.report.json_report import encode
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.run_folder import DEFAULT_ROOT, open_run, write_whole
from topout.study.calibrate import CALIBRATION_VERSION
from topout.study.calibrate import calibrate as describe_run


def calibrate(run: Path | None = None, /, *, doctor: Path | None = None, out: Path | None = None) -> int:
    """Describe a recorded job and its machine by numbers with 80 % ranges, for topout simulate.

    Parameters
    ----------
    run
        The run folder; the newest under topout-runs when left out.
    doctor
        What topout doctor --json wrote, for the links; the newest under topout-runs/doctor when left out.
    out
        Where to write; calibration.json in the run folder when left out.
    """
    folder, _ = open_run(run if run is not None else newest_run(Path(DEFAULT_ROOT)))
    found = describe_run(folder, _diagnosis(doctor))
    target = out or folder.path / "calibration.json"
    document = {"version": CALIBRATION_VERSION, "job": found.job, "system": found.system, "notes": found.notes}
    write_whole(target, encode(document))
    print(target)
    for note in found.notes:
        print(f"Note    {note}", file=sys.stderr)
    print(f"Next    topout simulate {target} --system {target} --nodes 1..16", file=sys.stderr)
    return ExitCode.FINE


def _diagnosis(path: Path | None) -> dict[str, Any] | None:
    if path is None:
        kept = sorted(Path(DEFAULT_ROOT, "doctor").glob("*/doctor.json"), key=lambda entry: entry.stat().st_mtime_ns)
        if not kept:
            return None
        path = kept[-1]
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TopoutError(f"{path} cannot be read.", why=str(error), do="topout doctor --json > doctor.json") from error
    if not isinstance(found, dict) or not isinstance(found.get("links"), list):
        raise TopoutError(f"{path} is no diagnosis.", why="It has no links.", do="topout doctor --json > doctor.json")
    return found
