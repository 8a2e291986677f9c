"""Runs of a scaling study: at which numbers of ranks, with which batch, and what came out.

Each is a `topout run` of its own, so the script meets what it will meet in earnest. Not the arithmetic on them, which
is in `scaling`.
"""

import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from topout.analyze.measure import measure_run
from topout.launch.detect import PART_VARIABLE
from topout.launch.run_record import MARK_VARIABLE
from topout.schema.counted import counted
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.run_folder import LOST, open_run
from topout.study.scaling import MODES, STILL_RUNNING, Observed

Say = Callable[[str], None]


@dataclass(frozen=True)
class Account:
    """What is said while points run; why some gave no run is kept, for an answer that misses them."""

    say: Say
    left_out: list[str] = field(default_factory=list)

    def leave_out(self, why: str) -> None:
        self.left_out.append(why)
        self.say(f"Note    {why}")


def observe(folder: Path) -> Observed:
    opened, run = open_run(folder)
    measures, _ = measure_run(opened)
    spec = run.get("spec") or {}
    script = str(spec.get("script") or run.get("script") or folder.name)
    return Observed(
        name=folder.name,
        script=script,
        ranks=measures.environment.num_ranks,
        batch=measures.rank_samples_per_step,
        measures=measures,
        failed=_failure(run),
        folder=str(folder),
    )


def _failure(run: Mapping[str, Any]) -> str | None:
    status = str(run.get("status") or "finished")
    if status == "finished":
        return None
    if status == LOST:
        return "was lost, its launcher killed,"
    return STILL_RUNNING if status == "running" else f"{status} with code {run.get('exit_code')}"


def rank_counts(text: str | None, *, least: int = 2) -> list[int]:
    two = "There are two at least, since speed-up is a ratio."
    do = "--ranks 1,2,4"
    if text is None:
        raise TopoutError("There are no numbers of ranks.", why=two if least > 1 else "--ranks was not given.", do=do)
    found = set()
    for part in text.split(","):
        if not re.fullmatch(r"\s*\d+\s*", part, re.ASCII) or int(part) < 1:
            what = f"{part.strip()!r} is not a whole number above 0." if part.strip() else "A number is missing."
            why = f"{what} Commas part them."
            raise TopoutError(f"--ranks {text} are no numbers of ranks.", why=why, do=do)
        found.add(int(part))
    if len(found) < least:
        raise TopoutError(f"--ranks {text} is one number of ranks.", why=two, do=do)
    return sorted(found)


@dataclass(frozen=True)
class Batch:
    """How the batch is set: by the script's own option, else in its DataLoaders; without a size the script chooses."""

    size: int | None
    option: str | None
    counts: str

    def __post_init__(self) -> None:
        if self.option is not None and self.size is None:
            raise TopoutError(
                "--batch-arg stands alone.",
                why="It says which option of the script sets the batch, --batch how large that of a rank is.",
                do="--batch-arg --batch-size --batch 256",
            )
        if self.counts not in ("rank", "all"):
            raise TopoutError(f"--batch-of {self.counts}?", why="It is rank or all.", do="--batch-of all")
        if self.counts == "all" and self.option is None:
            raise TopoutError(
                "--batch-of all stands alone.",
                why="It says what the script's own option counts, and --batch-arg does not name one.",
                do="--batch-arg --batch-size",
            )
        if self.size is not None and self.size < 1:
            raise TopoutError(f"--batch {self.size}?", why="A batch has one sample at least.", do="--batch 64")

    def of_rank(self, count: int, fewest: int, mode: str | None) -> int | None:
        """Samples of one rank at so many ranks."""
        if self.size is None:
            return None
        total = self.size * (fewest if mode == "strong" else count)
        if total % count:
            raise TopoutError(
                f"A batch of {total} does not divide among {count} ranks.",
                why="Strong scaling keeps it the same at every point.",
                do=f"--batch {self.size * count} or another that does",
            )
        return total // count

    def point(self, count: int, fewest: int, mode: str | None) -> "Point":
        size = self.of_rank(count, fewest, mode)
        if size is None:
            return Point(count, None)
        if self.option is None:
            return Point(count, size, options=("--batch", str(size)))
        return Point(count, size, words=(self.option, str(size * count if self.counts == "all" else size)))

    def words(self, count: int, fewest: int, mode: str | None) -> list[str]:
        """For the script; empty where its loaders are set instead."""
        return list(self.point(count, fewest, mode).words)


@dataclass(frozen=True)
class Point:
    """What is run: ranks, the batch of one of them, and the words that make it so."""

    ranks: int
    batch: int | None
    options: tuple[str, ...] = ()
    """Of `topout run`."""
    words: tuple[str, ...] = ()
    """Of the script, after its own."""


def modes_of(mode: str | None) -> list[str | None]:
    """Those that a word asks for."""
    if mode == "both":
        return list(MODES)
    if mode is not None and mode not in MODES:
        raise TopoutError(f"--mode {mode} is not known.", why="It is strong, weak or both.", do="--mode weak")
    return [mode]


def planned_points(counts: Sequence[int], mode: str | None, batch: Batch) -> list[Point]:
    """Without repeats; what strong and weak have in common is there once."""
    if mode == "both" and batch.size is None:
        raise TopoutError(
            "--mode both needs a batch.",
            why="A script that chooses its own batch does one of the two.",
            do="--mode both --batch 256",
        )
    found = [batch.point(count, min(counts), one) for one in modes_of(mode) for count in counts]
    return sorted(dict.fromkeys(found), key=lambda point: (point.ranks, -(point.batch or 0)))


def by_mode(runs: Sequence[Observed], mode: str | None) -> dict[str | None, list[Observed]]:
    """The runs of each study; with `both` those that keep the batch of all ranks, and those that keep that of one."""
    if mode != "both":
        return {mode: list(runs)}
    known = [run for run in runs if run.batch]
    first = min((run.ranks for run in known), default=0)
    batches = {run.batch for run in known if run.ranks == first}
    if len(batches) != 1:
        raise TopoutError(
            "There is no point that strong and weak scaling have in common.",
            why=f"The runs of the fewest ranks have batches of {', '.join(map(str, sorted(map(str, batches))))}."
            if batches
            else "No run says what its batch is.",
            do="name runs of one batch at the fewest ranks, or --mode strong, or weak",
        )
    (size,) = batches
    strong = [run for run in known if run.batch and run.batch * run.ranks == (size or 0) * first]
    weak = [run for run in known if run.batch == size]
    for run in runs:
        if not run.batch and not run.is_usable:
            # it failed before its batch was known: both studies say that it is left out
            strong.append(run)
            weak.append(run)
        elif run not in strong and run not in weak:
            batch = f"a batch of {run.batch}" if run.batch else "an unknown batch"
            raise TopoutError(
                f"{run.name} belongs to neither: {counted(run.ranks, 'rank')} with {batch}.",
                why=f"With {size} on {counted(first, 'rank')} strong keeps {(size or 0) * first} in all, weak {size}.",
                do="leave it out; where --batch-arg counts samples of all ranks: --batch-of all",
            )
    return {"strong": strong, "weak": weak}


def run_point(
    point: Point, options: Sequence[str], script: Sequence[str], runs: Path, account: Account
) -> Observed | None:
    """None where the script failed at this point, which is said; a command that cannot be is an error at once."""
    ended = start_run(point, options, script, runs)
    if ended.is_refused:
        raise ended.refusal()
    if ended.code != ExitCode.FINE or ended.folder is None:
        what = f"failed with {ended.code}" if ended.code != ExitCode.FINE else f"left no run folder in {runs}"
        told = " | ".join(ended.last_lines)
        account.leave_out(f"{counted(point.ranks, 'rank')} {what}{f': {told}' if told else ''}")
        return None
    return seen(ended.folder, point, account.say)


def seen(folder: Path, point: Point | None, say: Say) -> Observed:
    found = observe(folder)
    if found.batch is None and point is not None and point.batch is not None:
        found = replace(found, batch=point.batch)
    rate = f"{found.samples_per_s:,.0f} samples/s" if found.samples_per_s else "no throughput"
    say(f"{counted(found.ranks, 'rank'):>10}  {rate:>20}  {folder}")
    return found


@dataclass(frozen=True)
class Ended:
    """How a `topout run` ended."""

    code: int
    folder: Path | None
    last_lines: list[str]

    @property
    def is_refused(self) -> bool:
        """By topout, not by the script: it was never begun, or the batch was not taken."""
        is_kept = any(line.startswith("--batch ") and "was not taken" in line for line in self.last_lines)
        return self.code == ExitCode.USAGE and (self.folder is None or is_kept)

    def refusal(self) -> TopoutError:
        parts = [line.strip().removeprefix("why").removeprefix("do").strip() for line in self.last_lines]
        if len(parts) == 3:
            return TopoutError(parts[0], why=parts[1], do=parts[2])
        return TopoutError("The script could not be started.", why=" ".join(parts), do="topout run SCRIPT")


def start_run(point: Point, options: Sequence[str], script: Sequence[str], runs: Path) -> Ended:
    _check_place(runs)
    before = set(runs.glob("*/run.json"))
    mark = secrets.token_hex(8)
    # else a file beside the script could stand in for a module of Python's or topout's
    command = [sys.executable, "-P", "-m", "topout", "run", "-q", "-n", str(point.ranks), "--runs", str(runs)]
    done = subprocess.run(
        [*command, *options, *point.options, *script, *point.words],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False,
        env={**environment(os.environ), MARK_VARIABLE: mark},
    )  # fmt: skip
    last = done.stderr.decode(errors="replace").strip().splitlines()[-3:]
    return Ended(done.returncode, _newest(set(runs.glob("*/run.json")) - before, mark), last)


def _check_place(runs: Path) -> None:
    """A run trains on where its folder cannot be made; a study has nothing without."""
    place = runs.absolute()
    # os.path, since pathlib raises where one may not look
    there = next(one for one in (place, *place.parents) if os.path.lexists(one))
    if not there.is_dir():
        why = f"{there} is no folder."
    elif not os.access(there, os.W_OK | os.X_OK):
        why = f"Nothing can be written to {there}."
    else:
        return
    raise TopoutError(
        f"No run folder can be made in {runs}.",
        why=why,
        do="choose a writable place with --runs DIR",
        exit_code=ExitCode.ENVIRONMENT,
    )


def _newest(made: Iterable[Path], mark: str) -> Path | None:
    """The folder of the run with this mark, of its last start where there were several; others may write beside it."""
    dated = []
    for path in made:
        try:
            content = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(content, dict) and content.get("mark") == mark:
            dated.append((str(content.get("started_at", "")), path.parent))
    return max(dated)[1] if dated else None


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    return {**inherited, PART_VARIABLE: "1"}
