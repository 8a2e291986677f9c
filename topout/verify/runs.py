"""Two run folders to a comparison: their steady steps, and what makes them hard to compare.

Not the statistics: those are in `compare`, on arrays.
"""

import shlex
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from topout.analyze.batches import trained_on
from topout.analyze.evaluations import computes_unseen
from topout.analyze.peers import sample_peers
from topout.analyze.series import Series, load_series
from topout.analyze.steps import Phases, read_phases
from topout.schema.counted import counted
from topout.schema.errors import TopoutError
from topout.schema.measures import PHASES
from topout.schema.run_folder import RunFolder, open_run
from topout.schema.usual_samples import usual_samples
from topout.verify.compare import Comparison, StepPhases, Steps, compare_steps, is_equal_work


class _Run(NamedTuple):
    series: Series
    batches_per_step: int | None
    """Of one rank."""
    samples_per_step: float | None
    """Of all ranks."""


def compare_runs(a: RunFolder, b: RunFolder) -> Comparison:
    """B against A, over the steady steps of each; by the time a sample where a step takes other numbers of them."""
    run_a, run_b = _read(a), _read(b)
    a_step_ns, a_phase_ns = _steady(run_a.series)
    b_step_ns, b_phase_ns = _steady(run_b.series)
    a_samples, b_samples = run_a.samples_per_step, run_b.samples_per_step
    samples = (a_samples, b_samples) if a_samples and b_samples else None
    work = _other_batches(run_a, run_b) if samples is None else _other_samples(samples)
    return compare_steps(
        a_step_ns,
        b_step_ns,
        a_phase_ns,
        b_phase_ns,
        phases=PHASES,
        names=(str(a.path), str(b.path)),
        samples=samples,
        notes=(*_going(a, b), *_notes(run_a.series, run_b.series, samples), *work),
    )


def _read(folder: RunFolder) -> _Run:
    series, phases = load_series(folder), read_phases(folder)
    if series is None or phases is None:
        raise TopoutError(
            f"{folder.path} holds no steps to compare.",
            why="no rank completed a step while it was recorded",
            do=f"topout analyze {shlex.quote(str(folder.path))}   says what was measured",
        )
    if any(map(computes_unseen, phases.tables)):
        # a loader of evaluations might be taken for training's
        return _Run(series, None, None)
    return _Run(series, trained_on(phases).batches_per_step, _samples(phases))


def _samples(phases: Phases) -> float | None:
    """Of a step on all ranks; None where no loader was seen, or one did not say how many."""
    loaded = [_own_samples(phases, peers) for peers in sample_peers(phases.tables)]
    told = [samples for samples in loaded if samples is not None]
    return (sum(told) or None) if len(told) == len(loaded) else None


def _own_samples(phases: Phases, ranks: list[int]) -> float | None:
    """Of a step on these ranks, which work on the same ones; 0 where others load for them, None where not known."""
    own = [number for number, table in enumerate(phases.tables) if table.rank in ranks]
    tables = [phases.tables[number] for number in own]
    edges_ns, first_ns, tail_ns = phases.edges_ns[own], phases.first_ns[own], phases.tail_ns[own]
    # each by itself: where one rank loads for all, the mean over ranks is nobody's batch
    trained = trained_on(replace(phases, tables=tables, edges_ns=edges_ns, first_ns=first_ns, tail_ns=tail_ns))
    if trained.batches_per_step is None:
        return 0.0
    sizes = {size for table in tables if isinstance(size := table.facts.get("batch_size"), int)}
    size = sizes.pop() if len(sizes) == 1 else None
    return usual_samples(size, trained.batches_per_step, trained.samples_per_step) or trained.samples_per_step


def _steady(series: Series) -> tuple[Steps, StepPhases]:
    """Step time of the job, from one step's last rank to the next step's, and phases as the mean over ranks.

    Ranks that seldom meet are slow in turns: the longest of each step's durations would add up to more than the run.
    """
    # what follows the last optimizer step is no part of a step: leave that step out where there is such a tail
    last = -1 if series.tail_ns.any() else None
    ends_ns = (series.start_ns + series.duration_ns)[:, :last].max(axis=0)
    step_ns = np.diff(ends_ns, prepend=0).astype(np.float64)
    phase_ns = series.phase_ns[:, :last].mean(axis=0).astype(np.float64)
    return step_ns, phase_ns


def _going(a: RunFolder, b: RunFolder) -> list[str]:
    statuses = {name: open_run(folder.path)[1].get("status") for name, folder in (("A", a), ("B", b))}
    going = [name for name, status in statuses.items() if status == "running"]
    if not going:
        return []
    are = "is" if len(going) == 1 else "are"
    return [f"{' and '.join(going)} {are} still running; the figures are of what is recorded so far."]


def _notes(a: Series, b: Series, samples: tuple[float, float] | None) -> tuple[str, ...]:
    notes = []
    if len(a.ranks) != len(b.ranks):
        work = "; a step may not be the same amount of work" if samples is None else ""
        notes.append(f"A ran on {counted(len(a.ranks), 'rank')} and B on {len(b.ranks):,}{work}.")
    if set(a.hosts) != set(b.hosts):
        notes.append("A and B ran on different hosts; the difference may be the machine's.")
    if a.has_steps_by_backward != b.has_steps_by_backward:
        told = "A" if a.has_steps_by_backward else "B"
        work = "; a step may not be the same amount of work" if samples is None else ""
        notes.append(f"The steps of {told} are told by backward(), those of the other run by optimizers{work}.")
    if a.is_split_withheld != b.is_split_withheld:
        told = "A" if a.is_split_withheld else "B"
        notes.append(
            f"Waiting counts as transfer in {told}, where clocks of hosts disagree; compare the two phases together."
        )
    return tuple(notes)


def _other_samples(samples: tuple[float, float]) -> list[str]:
    if is_equal_work(samples):
        return []
    each = [f"{number:,.1f}".removesuffix(".0") for number in samples]
    return [
        f"A step takes {each[0]} samples in A and {each[1]} in B, over all ranks: B is judged by the time a sample. "
        "The phases are those of a step."
    ]


def _other_batches(a: _Run, b: _Run) -> list[str]:
    """A sentence where samples are not known, and a rank's step takes more batches in one run than in the other."""
    if a.batches_per_step is None or b.batches_per_step is None or a.batches_per_step == b.batches_per_step:
        return []
    each = [f"{num} {'batch' if num == 1 else 'batches'}" for num in (a.batches_per_step, b.batches_per_step)]
    return [f"A step of A takes {each[0]} a rank and one of B {each[1]}; a step is not the same amount of work."]
