"""`topout scale`: a script on several numbers of ranks, or the folders of runs that were made so."""

import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from topout.analyze.measure import measure_run
from topout.report.json_report import encode
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.run_folder import DEFAULT_ROOT, open_run
from topout.study.scaling import MODES, Observed, Scaling, study

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
        plan = _plan(_counts(ranks), mode, Batch(batch, batch_arg, batch_of), repeats)
        observed = [_run(words, options, list(script_or_runs), runs) for words in plan]
    found = study([run for run in observed if run is not None], mode)
    if json:
        sys.stdout.write(encode({"version": SCALE_VERSION, **asdict(found)}))
    else:
        print(_text(found, min(shutil.get_terminal_size((110, 24)).columns, 120)))
    for note in found.notes:
        print(f"Note    {note}", file=sys.stderr)
    return ExitCode.FINE


def observe(folder: Path) -> Observed:
    opened, run = open_run(folder)
    measures, _ = measure_run(opened)
    script = str((run.get("spec") or {}).get("script") or run.get("script") or folder.name)
    return Observed(
        name=folder.name,
        script=script,
        ranks=measures.environment.num_ranks,
        batch=measures.input.batch_size,
        measures=measures,
    )


def _counts(text: str | None) -> list[int]:
    try:
        found = [int(part) for part in (text or "").split(",")]
        if min(found) < 1 or len(set(found)) < 2:
            raise ValueError(text)
    except ValueError:
        raise TopoutError(
            f"--ranks {text} are no numbers of ranks.", why="There are two at least.", do="--ranks 1,2,4"
        ) from None
    return sorted(set(found))


@dataclass(frozen=True)
class Batch:
    """How the batch of a script is set; nothing given, the script chooses."""

    size: int | None
    option: str | None
    counts: str

    def __post_init__(self) -> None:
        if (self.size is None) != (self.option is None):
            raise TopoutError(
                f"{'--batch' if self.option is None else '--batch-arg'} stands alone.",
                why="One says how large the batch of a rank is, the other which option of the script sets it.",
                do="--batch-arg --batch-size --batch 256",
            )
        if self.counts not in ("rank", "all"):
            raise TopoutError(f"--batch-of {self.counts}?", why="It is rank or all.", do="--batch-of all")

    def words(self, count: int, fewest: int, mode: str | None) -> list[str]:
        if self.size is None or self.option is None:
            return []
        total = self.size * (fewest if mode == "strong" else count)
        if total % count:
            raise TopoutError(
                f"A batch of {total} does not divide among {count} ranks.",
                why="Strong scaling keeps it the same at every point.",
                do=f"--batch {self.size * count} or another that does",
            )
        return [self.option, str(total if self.counts == "all" else total // count)]


def _plan(counts: list[int], mode: str | None, batch: Batch, repeats: int) -> list[tuple[int, list[str]]]:
    """Ranks and further words for the script, point by point, over and over: a machine drifts, and ratios must not."""
    return [(count, batch.words(count, counts[0], mode)) for count in counts] * repeats


def _run(point: tuple[int, list[str]], options: list[str], script: list[str], runs: Path) -> Observed | None:
    count, words = point
    before = set(runs.glob("*/run.json"))
    command = [sys.executable, "-m", "topout", "run", "-q", "-n", str(count), "--runs", str(runs), *options]
    done = subprocess.run([*command, *script, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    made = sorted(set(runs.glob("*/run.json")) - before)
    if done.returncode not in (ExitCode.FINE, ExitCode.FINDINGS) or not made:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-3:]
        print(f"Note    {count} ranks failed with {done.returncode}: {' | '.join(last)}", file=sys.stderr)
        return None
    found = observe(made[-1].parent)
    rate = found.samples_per_s
    print(
        f"{count:>4} ranks  {f'{rate:,.0f} samples/s' if rate else 'no throughput':>20}  {made[-1].parent}",
        file=sys.stderr,
    )
    return found


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
