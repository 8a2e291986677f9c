"""`topout scale`: a script on several numbers of ranks, or the folders of runs that were made so."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from topout.cli import scale_jobs
from topout.cli.app import AS_TYPED
from topout.cli.kept_runs import runs_root
from topout.cli.page_files import check_page, write_page
from topout.cli.scale_page import scale_page
from topout.cli.scale_text import scale_text
from topout.cli.training import check_script
from topout.host.memory_room import room_of_rank
from topout.launch.bounds import check_numbers
from topout.report.json_report import encode
from topout.schema.counted import counted
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.spec import RunSpec
from topout.study.largest_batch import Search, judge, largest_batch, that_divides
from topout.study.law_ranges import LawRange, law_ranges
from topout.study.placement import current_allocation, options_inside
from topout.study.scaling import Observed, Scaling, check_counts, study
from topout.study.scaling_runs import (
    Account,
    Batch,
    Ended,
    Point,
    by_mode,
    modes_of,
    observe,
    planned_points,
    rank_counts,
    run_point,
    start_run,
)
from topout.submit.job_folder import JobFolder

SCALE_VERSION = 1
_TRIAL_STEPS = 3
"""Of a run that looks for the largest batch: memory is at its most by then."""


def scale(
    *script_or_runs: Annotated[str, AS_TYPED, Parameter(name="SCRIPT-AND-ARGS")],
    ranks: str | None = None,
    mode: str | None = None,
    repeats: int = 3,
    batch: str | None = None,
    batch_arg: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    batch_of: str = "rank",
    steps: int | None = None,
    ddp: Annotated[bool, Parameter(negative="")] = False,
    per_node: int | None = None,
    submit: Annotated[bool, Parameter(negative="")] = False,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    time: str | None = None,
    account: str | None = None,
    partition: str | None = None,
    runs_only: Annotated[bool, Parameter(negative="")] = False,
    runs: Path | None = None,
    html: Path | None = None,
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
        strong: the batch of all ranks stays; weak: that of one rank; both. Default: as the script does.
    repeats
        Runs at each point, in turn, for the interval. Default: 3.
    batch
        Batch of one rank at the fewest ranks, set in the script's DataLoaders; largest: the largest that fits.
    batch_arg
        Set the batch with the script's own option instead, such as --batch-size.
    batch_of
        Whether that option counts samples of a rank or of all. Default: rank.
    steps
        End each run cleanly after so many optimizer steps.
    ddp
        Make a script for one device data-parallel.
    per_node
        Ranks on a node, at most; points with fewer ranks take fewer nodes of the job.
    submit
        Submit one job of the site's scheduler for each point, and wait for them.
    dry_run
        With --submit, print the job scripts and submit nothing.
    time
        With --submit, how long the job of a point may run, such as 30m.
    account
        With --submit, who pays.
    partition
        With --submit, partition or queue.
    runs_only
        Make the runs and no study of them; one number of ranks will do.
    runs
        Folder in which run folders are made. Default: that of topout run, topout-runs.
    html
        Write the study as a page, too: a file that ends in .html, or a folder.
    json
        Print all of it as JSON.
    """
    page = check_page(html, "scaling.html")
    _check_words(script_or_runs, mode, repeats)
    check_numbers(RunSpec(steps=steps, per_node=per_node))
    told = Account(_say)
    if _are_runs(script_or_runs, ranks):
        asked_of_runs = {
            "ranks": ranks, "batch": batch, "batch-arg": batch_arg, "batch-of": batch_of != "rank", "steps": steps,
            "ddp": ddp, "per-node": per_node, "submit": submit, "dry-run": dry_run, "time": time, "account": account,
            "partition": partition, "runs-only": runs_only,
        }  # fmt: skip
        _check_given(asked_of_runs, "Run folders were named, and nothing is run.")
        observed = [run for word in script_or_runs for run in _given(Path(word), told)]
    else:
        if not submit:
            of_jobs = {"dry-run": dry_run, "time": time, "account": account, "partition": partition}
            _check_given(of_jobs, "It is for jobs, and --submit was not given.")
        counts = rank_counts(ranks, least=1 if runs_only else 2)
        options = [*(["--steps", str(steps)] if steps else []), *(["--ddp"] if ddp else [])]
        runs = runs or runs_root()
        place = _Place(list(script_or_runs), options, runs, per_node, is_elsewhere=submit)
        asked = _batch(batch, Batch(None if batch is None else 1, batch_arg, batch_of), counts, mode, place)
        points = planned_points(counts, mode, asked)
        if submit:
            jobs = scale_jobs.Asked(
                script=script_or_runs, options=options, batch=asked, repeats=repeats, runs=runs, per_node=per_node,
                time=time, account=account, partition=partition,
            )  # fmt: skip
            planned = scale_jobs.submissions(points, jobs)
            if dry_run:
                return scale_jobs.show(planned)
            observed = scale_jobs.run_jobs(planned, repeats, told)
        else:
            observed = place.run(points, repeats, told)
        if runs_only:
            return ExitCode.FINE if observed else ExitCode.JOB_FAILED
    _report(observed, told.left_out, mode, page, is_json=json)
    return ExitCode.FINE


def _check_words(script_or_runs: Sequence[str], mode: str | None, repeats: int) -> None:
    modes_of(mode)
    if not script_or_runs:
        raise TopoutError(
            "There is nothing to scale.", why="No script was named.", do="topout scale --ranks 1,2 train.py"
        )
    check_script(script_or_runs[0])
    if repeats < 1:
        raise TopoutError(f"--repeats {repeats}?", why="A point is run once at least.", do="--repeats 3")


def _are_runs(words: Sequence[str], ranks: str | None) -> bool:
    """Run folders, and no script; where neither can be meant, the word that is no run folder is an error."""
    first = Path(words[0])
    # os.path, since pathlib raises for words that cannot be paths, such as long ones
    is_script = os.path.isfile(first) or first.suffix == ".py" or first.name.startswith("-")  # noqa: PTH113
    if not _is_run(words[0]) and (is_script or ranks is not None):
        return False
    other = next((word for word in words if not _is_run(word)), None)
    if other is None:
        return True
    raise TopoutError(
        f"{other} is no run folder." if os.path.exists(other) else f"There is no {other}.",  # noqa: PTH110
        why="Without a script all words are run folders, and one has run.json, or job.json of a job.",
        do="topout scale topout-runs/RUN1 topout-runs/RUN2, or topout scale --ranks 1,2 train.py",
    )


def _is_run(word: str) -> bool:
    """A run folder, or the folder of a job."""
    return any(os.path.isfile(f"{word}/{name}") for name in ("run.json", "job.json"))  # noqa: PTH113


def _report(
    observed: list[Observed], left_out: list[str], mode: str | None, page: Path | None, *, is_json: bool
) -> None:
    check_counts(observed, left_out)
    studies = [study(found, one, left_out) for one, found in by_mode(observed, mode).items()]
    ranges = [_ranges(found) for found in studies]
    _tell(studies, ranges, mode, is_json=is_json)
    if page is not None:
        write_page(page, scale_page(studies, ranges, observed[0].script, f"topout scale, {len(observed)} runs"))


def _given(folder: Path, account: Account) -> list[Observed]:
    if (folder / "run.json").is_file():
        return [observe(folder)]
    return scale_jobs.observed_of(JobFolder(folder), None, account)


class _Place:
    """Where points run when nothing is submitted: this host, or the job around this process."""

    def __init__(
        self, script: list[str], options: list[str], runs: Path, per_node: int | None, *, is_elsewhere: bool
    ) -> None:
        self._script, self._options, self._runs, self._per_node = script, options, runs, per_node
        self._allocation = None if is_elsewhere else current_allocation()
        self.is_elsewhere = is_elsewhere

    def options(self, ranks: int) -> list[str]:
        return [*self._options, *options_inside(self._allocation, ranks, self._per_node)]

    def run(self, points: list[Point], repeats: int, account: Account) -> list[Observed]:
        """In turn, over and over: a machine drifts, and ratios must not. A point that failed is not tried again."""
        for point in points:
            self.options(point.ranks)
        found: list[Observed] = []
        failed: set[Point] = set()
        try:
            for point in points * repeats:
                if point in failed:
                    continue
                one = run_point(point, self.options(point.ranks), self._script, self._runs, account)
                if one is None:
                    failed.add(point)
                else:
                    found.append(one)
        except KeyboardInterrupt:
            if found:
                folders = shlex.join(run.folder or run.name for run in found)
                account.say(f"\nWhat was run so far:\n  topout scale {folders}")
            raise
        return found

    def largest(self, ranks: int, batch: Batch) -> tuple[int, str]:
        """And what it is bound by."""
        options = [
            *self.options(ranks),
            "--no-report",
            *(["--steps", str(_TRIAL_STEPS)] if "--steps" not in self._options else []),
        ]

        def ended(size: int) -> Ended:
            return start_run(replace(batch, size=size).point(ranks, ranks, None), options, self._script, self._runs)

        search = Search(lambda size: judge(ended(size), size), room_of_rank(ranks), _say)
        found = largest_batch(search)
        _say(f"Largest batch of a rank on {counted(ranks, 'rank')}: {found}, bound by {search.bound}")
        return found, search.bound


def _batch(text: str | None, batch: Batch, counts: list[int], mode: str | None, place: _Place) -> Batch:
    """The batch with its size: none, a number, or the largest that fits."""
    if text is None:
        return batch
    if text == "largest":
        if place.is_elsewhere:
            raise TopoutError(
                "--batch largest cannot be found from here.",
                why="With --submit the points run elsewhere, on other devices than those of this host.",
                do="find it inside a job: topout scale --batch largest --ranks 1 --runs-only SCRIPT",
            )
        found, bound = place.largest(min(counts), batch)
        if bound == "data" and mode != "strong":
            found = _that_all_have(found, counts)
        return replace(batch, size=that_divides(found, counts) if mode in ("strong", "both") else found)
    if not text.lstrip("-").isdecimal():
        raise TopoutError(f"--batch {text} is no batch.", why="It is a number of samples, or largest.", do="--batch 64")
    return replace(batch, size=int(text))


def _that_all_have(found: int, counts: list[int]) -> int:
    """Weak scaling gives every rank the same batch, and of the same data more ranks have fewer samples each."""
    fewest, most = min(counts), max(counts)
    shared = found * fewest // most
    if shared < 1:
        raise TopoutError(
            f"{most} ranks have no sample each.",
            why=f"The data of {counted(fewest, 'rank')} are a batch of {found}, which {most} share.",
            do="fewer --ranks, more data, or --mode strong",
        )
    if shared < found:
        _say(f"For weak scaling: {shared}, since {most} ranks share the same data")
    return shared


def _check_given(given: Mapping[str, object], why: str) -> None:
    """What is asked for and cannot be done is an error: silence would be taken for success."""
    for name, value in given.items():
        if value:
            raise TopoutError(f"--{name} does nothing here.", why=why, do=f"leave out --{name}")


def _ranges(found: Scaling) -> dict[str, list[LawRange]]:
    counts = sorted({ranks for law in found.forecasts.values() for ranks in law})
    return law_ranges(found.points, counts) if counts else {}


def _tell(studies: list[Scaling], ranges: list[dict[str, list[LawRange]]], mode: str | None, *, is_json: bool) -> None:
    if is_json:
        told = [{**asdict(found), "ranges": of} for found, of in zip(studies, ranges, strict=True)]
        content = {"mode": "both", "studies": told} if mode == "both" else told[0]
        sys.stdout.write(encode({"version": SCALE_VERSION, **content}))
    else:
        texts = [scale_text(found, of) for found, of in zip(studies, ranges, strict=True)]
        print("\n\n".join(texts))
    shared = [note for note in studies[0].notes if all(note in found.notes for found in studies)]
    for note in shared:
        print(f"Note    {note}", file=sys.stderr)
    for found in studies:
        for note in found.notes:
            if note not in shared:
                print(f"Note    {found.mode}: {note}", file=sys.stderr)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
