"""`topout scale`: a script on several numbers of ranks, or the folders of runs that were made so."""

import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from topout.report.json_report import encode
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.run_folder import DEFAULT_ROOT
from topout.study.scaling import MODES, Observed, Scaling, study
from topout.study.scaling_runs import Batch, observe, planned_runs, rank_counts, run_point

SCALE_VERSION = 1


def scale(
    *script_or_runs: Annotated[str, Parameter(name="SCRIPT-AND-ARGS", allow_leading_hyphen=True)],
    ranks: str | None = None,
    mode: str | None = None,
    repeats: int = 3,
    batch: int | None = None,
    batch_arg: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    batch_of: str = "rank",
    steps: int | None = None,
    ddp: Annotated[bool, Parameter(negative="")] = False,
    runs: Path = Path(DEFAULT_ROOT),
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Run a script on several numbers of ranks and say how it scales, and which factor bends the curve.

    Options stand before SCRIPT. Run folders can be given instead of a script; nothing is run then.

    Parameters
    ----------
    script_or_runs
        The script and its own arguments, or run folders.
    ranks
        Numbers of ranks, such as 1,2,4.
    mode
        strong: the batch of all ranks stays; weak: that of one rank. Default: as the script does.
    repeats
        Runs at each point, in turn, for the interval.
    batch
        Batch of one rank at the fewest ranks.
    batch_arg
        The script's own option for the batch, such as --batch-size.
    batch_of
        Whether that option counts samples of a rank or of all.
    steps
        End each run cleanly after so many optimizer steps.
    ddp
        Make a script for one device data-parallel.
    runs
        Folder in which run folders are made.
    json
        Print all of it as JSON.
    """
    if mode is not None and mode not in MODES:
        raise TopoutError(f"--mode {mode} is not known.", why=f"It is {' or '.join(MODES)}.", do="--mode weak")
    if not script_or_runs:
        raise TopoutError(
            "There is nothing to scale.", why="No script was named.", do="topout scale --ranks 1,2 train.py"
        )
    folders = [Path(word) for word in script_or_runs if (Path(word) / "run.json").is_file()]
    if len(folders) == len(script_or_runs):
        observed: list[Observed | None] = [observe(folder) for folder in folders]
    else:
        options = [*(["--steps", str(steps)] if steps else []), *(["--ddp"] if ddp else [])]
        plan = planned_runs(rank_counts(ranks), mode, Batch(batch, batch_arg, batch_of), repeats)
        observed = [run_point(words, options, list(script_or_runs), runs, _say) for words in plan]
    found = study([run for run in observed if run is not None], mode)
    if json:
        sys.stdout.write(encode({"version": SCALE_VERSION, **asdict(found)}))
    else:
        print(_text(found, min(shutil.get_terminal_size((110, 24)).columns, 120)))
    for note in found.notes:
        print(f"Note    {note}", file=sys.stderr)
    return ExitCode.FINE


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _text(found: Scaling, width: int) -> str:
    lines = [
        f"{found.mode} scaling\n",
        f"{'ranks':>6} {'batch':>6} {'samples/s':>11} {'80 % interval':>21} {'speed-up':>9} {'eff.':>5} {'step ms':>9} "
        f"{'parallel':>8} {'balance':>8} {'comm.':>6}",
    ]
    lines += [
        f"{point.ranks:>6} {point.batch or '–':>6} {point.samples_per_s:>11,.1f} "
        f"{f'{point.low:,.1f} to {point.high:,.1f}':>21} {point.speedup:>9.2f} {point.efficiency:>5.2f} "
        f"{point.step_s * 1e3:>9,.1f} {_factor(point.parallel_efficiency):>8} {_factor(point.load_balance):>8} "
        f"{_factor(point.communication_efficiency):>6}"
        for point in found.points
    ]
    names = [name for name in found.points[-1].phases_s if any(name in point.phases_s for point in found.points)]
    lines += ["", "ms of a step, mean over ranks", f"{'ranks':>6} " + " ".join(f"{name:>10}" for name in names)]
    lines += [
        f"{point.ranks:>6} " + " ".join(f"{point.phases_s.get(name, 0.0) * 1e3:>10,.2f}" for name in names)
        for point in found.points
    ]
    lines.append("")
    lines.append(f"What bends it   {found.bends or 'nothing: it scales'}")
    lines.append(f"Knee            {found.knee if found.knee else 'not reached'}")
    for law, rates in found.forecasts.items():
        said = ", ".join(f"{ranks} ranks {rate:,.0f}" for ranks, rate in rates.items())
        lines.append(f"{law:<15} {said} samples/s")
    return "\n".join(line[:width] for line in lines)


def _factor(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
