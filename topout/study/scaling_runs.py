"""Runs of a scaling study: at which numbers of ranks, with which batch, and what came out.

Each is a `topout run` of its own, so the script meets what it will meet in earnest. Not the arithmetic on them, which
is in `scaling`.
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from topout.analyze.measure import measure_run
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.run_folder import open_run
from topout.study.scaling import Observed


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


def rank_counts(text: str | None) -> list[int]:
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


def planned_runs(counts: list[int], mode: str | None, batch: Batch, repeats: int) -> list[tuple[int, list[str]]]:
    """Ranks and further words for the script, point by point, over and over: a machine drifts, and ratios must not."""
    return [(count, batch.words(count, counts[0], mode)) for count in counts] * repeats


def run_point(
    point: tuple[int, list[str]], options: list[str], script: list[str], runs: Path, say: Callable[[str], None]
) -> Observed | None:
    """None where the script failed at this point, which is said; a command that cannot be is an error at once."""
    count, words = point
    before = set(runs.glob("*/run.json"))
    command = [sys.executable, "-m", "topout", "run", "-q", "-n", str(count), "--runs", str(runs), *options]
    done = subprocess.run([*command, *script, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    made = sorted(set(runs.glob("*/run.json")) - before)
    last = done.stderr.decode(errors="replace").strip().splitlines()[-3:]
    if done.returncode == ExitCode.USAGE and not made:
        parts = [line.strip().removeprefix("why").removeprefix("do").strip() for line in last]
        raise TopoutError(parts[0], why=parts[1], do=parts[2]) if len(parts) == 3 else _refused(" ".join(last))
    if done.returncode not in (ExitCode.FINE, ExitCode.FINDINGS) or not made:
        say(f"Note    {count} ranks failed with {done.returncode}: {' | '.join(last)}")
        return None
    found = observe(made[-1].parent)
    rate = f"{found.samples_per_s:,.0f} samples/s" if found.samples_per_s else "no throughput"
    say(f"{count:>4} ranks  {rate:>20}  {made[-1].parent}")
    return found


def _refused(text: str) -> TopoutError:
    return TopoutError("The script could not be started.", why=text, do="topout run SCRIPT")
