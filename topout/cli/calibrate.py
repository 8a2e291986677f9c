"""`topout calibrate`: a recorded run becomes a description that `topout simulate` takes."""

import sys
from pathlib import Path

from topout.cli.analyze import newest_run
from topout.cli.diagnoses import read_diagnosis
from topout.cli.page_files import check_file, write_file
from topout.report.json_report import encode
from topout.schema.errors import ExitCode
from topout.schema.run_folder import DEFAULT_ROOT, open_run
from topout.study.calibrate import CALIBRATION_VERSION
from topout.study.calibrate import calibrate as describe_run

STILL_RUNNING = "The job is still running; the figures are of what is recorded so far."


def calibrate(run: Path | None = None, /, *, doctor: Path | None = None, out: Path | None = None) -> int:
    """Describe a recorded job and its machine by numbers with 80 % ranges, for topout simulate.

    Parameters
    ----------
    run
        The run folder; the newest under topout-runs when left out.
    doctor
        What topout doctor --json wrote, for the links; the newest under topout-runs/doctor when left out.
    out
        Where to write, a file or a folder; calibration.json in the run folder when left out.
    """
    folder, content = open_run(run if run is not None else newest_run(Path(DEFAULT_ROOT)))
    target = check_file(out, "--out", "calibration.json") or folder.path / "calibration.json"
    found = describe_run(folder, read_diagnosis(doctor))
    going = [STILL_RUNNING] if content.get("status") == "running" else []
    notes = [*going, *found.notes]
    document = {"version": CALIBRATION_VERSION, "job": found.job, "system": found.system, "notes": notes}
    write_file(target, encode(document), "--out calibration.json")
    print(target)
    for note in notes:
        print(f"Note    {note}", file=sys.stderr)
    print(f"Next    topout simulate {target} --system {target} --nodes 1..16", file=sys.stderr)
    return ExitCode.FINE
