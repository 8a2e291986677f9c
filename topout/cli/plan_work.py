"""What `topout plan` trains towards: epochs, or a loss; and what the run folder knows of batches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from pathlib import Path
from typing import Any

from topout.analyze.measure import measure_run
from topout.analyze.steps import read_tables
from topout.schema.errors import TopoutError
from topout.schema.measures import Measures
from topout.schema.run_folder import RunFolder, is_file, is_folder, open_run
from topout.study.critical_batch import FILE, CriticalBatch, from_noise_scale, from_probe, said_of_bound
from topout.study.description import calibration_of
from topout.study.losses import read_losses
from topout.study.seen_samples import num_peers
from topout.study.target_loss import samples_to
from topout.study.work import Work, to_target

LOSSES = "losses.csv"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Of the run that a job comes from; None: not known, or no run."""

    job: str
    """What the description is read from."""
    batch: int | None = None
    """Of all ranks."""
    critical: CriticalBatch | None = None
    why_no_critical: Sequence[str] = ()
    """Where its noise scale was measured all the same."""
    losses: Path | None = None
    loader_batch: int | None = None
    """What one rank's loader hands out at a time, where it is known that `--batch` can set it."""
    run: Mapping[str, Any] = field(default_factory=dict)
    """run.json: what it was told."""


def look_into_run(job: str) -> Seen:
    """`job`: a name, a file, or a run folder; a file in a run folder counts as the run's."""
    path = Path(job)
    folder = path if is_folder(path) else path.parent
    if is_folder(path):
        path = calibration_of(folder)
    if not is_file(path) or not is_file(RunFolder(folder).run_json):
        return Seen(job=str(path) if is_file(path) else job)
    measures, _ = measure_run(RunFolder(folder))
    noise = measures.noise_scale
    batch = noise.batch_size if noise else _batch(measures, RunFolder(folder))
    probe, losses = folder / FILE, folder / LOSSES
    run = open_run(folder)[1]
    return Seen(
        job=str(path),
        batch=batch,
        critical=from_probe(probe) if is_file(probe) else from_noise_scale(noise),
        why_no_critical=said_of_bound(noise),
        losses=losses if is_file(losses) else None,
        loader_batch=measures.input.batch_size if _takes_batch(run, RunFolder(folder)) else None,
        run=run,
    )


def _takes_batch(run: Mapping[str, Any], folder: RunFolder) -> bool:
    """Whether `--batch` was taken, or would have been by the loader that feeds training on every rank."""
    spec = run.get("spec")
    was_set = isinstance(spec, dict) and spec.get("batch") is not None
    return was_set or all(table.facts.get("takes_batch") is True for table in read_tables(folder))


def _batch(measures: Measures, folder: RunFolder) -> int | None:
    """Peers of a mesh work on the same samples."""
    size = measures.rank_samples_per_step
    return round(size * measures.environment.num_ranks / num_peers(read_tables(folder))) if size else None


def of_epochs(samples: float | None, epochs: float, critical: CriticalBatch | None) -> tuple[Work, list[str]]:
    if samples is None:
        raise TopoutError(
            "What to train towards is not said.",
            why="There is neither a number of samples nor a target.",
            do="--samples 1.28e6 --epochs 90, or --target-loss 0.6 --losses losses.csv",
        )
    for option, amount, example in (("--samples", samples, "1.28e6"), ("--epochs", epochs, "90")):
        if not 0 < amount < inf:
            raise TopoutError(
                f"{option} {amount:g} is no amount.", why="It is a finite number above 0.", do=f"{option} {example}"
            )
    return Work(samples=samples * epochs, critical_batch=_range(critical)), _origin(critical)


def of_target(
    target: float, losses: Path | None, batch: int | None, critical: CriticalBatch | None
) -> tuple[Work, list[str]]:
    if losses is None:
        raise TopoutError(
            "No losses to reach the target by.",
            why=f"--losses is not given, and the job is no run folder with {LOSSES}.",
            do="write samples,loss while training, and give the file as --losses",
        )
    if not isfinite(target):
        raise TopoutError(f"--target-loss {target:g} is no loss.", why="It is a finite number.", do="--target-loss 0.6")
    if batch is not None and batch < 1:
        raise TopoutError(
            f"--curve-batch {batch} is no batch.", why="It has one sample or more.", do="--curve-batch 256"
        )
    found = samples_to(target, read_losses(losses, batch))
    work = to_target(found, batch, _range(critical))
    fewest = work.fewest_steps
    said = [
        f"A loss of {target:g} {'was reached' if found.is_seen else 'comes'} after {found.samples:,.0f} samples "
        f"({found.low:,.0f} to {found.high:,.0f}) of the curve in {losses}."
    ]
    if not found.is_seen:
        said.append(f"The curve levels off at {found.floor:.4g} ({found.floor_low:.4g} to {found.floor_high:.4g}).")
    if fewest is not None:
        said.append(
            f"No batch needs fewer than {work.fewest_samples:,.0f} samples, nor fewer than {fewest:,.0f} steps."
        )
    said.extend(found.notes)
    if critical is not None and batch is None:
        said.append("The batch of the curve is not known and taken for small; --curve-batch says it.")
    return work, [*said, *_origin(critical)]


def _range(critical: CriticalBatch | None) -> tuple[float, float, float] | None:
    return None if critical is None else critical.ranged


def _origin(critical: CriticalBatch | None) -> list[str]:
    if critical is None or critical.origin == "as given":
        return []
    return [
        f"Critical batch {critical.value:,.0f} ({critical.low:,.0f} to {critical.high:,.0f}), from {critical.origin}."
    ]
