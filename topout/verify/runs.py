"""Two run folders to a comparison: their steady steps, and what makes them hard to compare.

Not the statistics: those are in `compare`, on arrays.
"""

import numpy as np

from topout.analyze.batches import Trained, trained_on
from topout.analyze.series import Series, load_series
from topout.analyze.steps import read_phases
from topout.schema.errors import TopoutError
from topout.schema.measures import PHASES
from topout.schema.run_folder import RunFolder, open_run
from topout.verify.compare import Comparison, StepPhases, Steps, compare_steps


def compare_runs(a: RunFolder, b: RunFolder) -> Comparison:
    """B against A, over the steady steps of each."""
    (series_a, trained_a), (series_b, trained_b) = _series(a), _series(b)
    a_step_ns, a_phase_ns = _steady(series_a)
    b_step_ns, b_phase_ns = _steady(series_b)
    return compare_steps(
        a_step_ns,
        b_step_ns,
        a_phase_ns,
        b_phase_ns,
        phases=PHASES,
        names=(str(a.path), str(b.path)),
        notes=(*_going(a, b), *_notes(series_a, series_b), *_other_batches(series_a, series_b, trained_a, trained_b)),
    )


def _series(folder: RunFolder) -> tuple[Series, Trained]:
    series, phases = load_series(folder), read_phases(folder)
    if series is None or phases is None:
        raise TopoutError(
            f"{folder.path} holds no steps to compare.",
            why="no rank completed a step while it was recorded",
            do=f"topout analyze {folder.path}   says what was measured",
        )
    return series, trained_on(phases)


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


def _notes(a: Series, b: Series) -> tuple[str, ...]:
    notes = []
    if len(a.ranks) != len(b.ranks):
        notes.append(
            f"A ran on {len(a.ranks)} ranks and B on {len(b.ranks)}; a step may not be the same amount of work."
        )
    if set(a.hosts) != set(b.hosts):
        notes.append("A and B ran on different hosts; the difference may be the machine's.")
    if a.has_steps_by_backward != b.has_steps_by_backward:
        told = "A" if a.has_steps_by_backward else "B"
        notes.append(
            f"The steps of {told} are told by backward(), those of the other run by optimizers; a step may not be the "
            "same amount of work."
        )
    if a.is_split_withheld != b.is_split_withheld:
        told = "A" if a.is_split_withheld else "B"
        notes.append(
            f"Waiting counts as transfer in {told}, where clocks of hosts disagree; compare the two phases together."
        )
    return tuple(notes)


def _other_batches(a: Series, b: Series, trained_a: Trained, trained_b: Trained) -> list[str]:
    """A sentence where a rank's step takes other samples in B than in A: larger batches, or more of them."""
    if trained_a.batches_per_step is None or trained_b.batches_per_step is None:
        return []
    counts = [trained_a.batches_per_step, trained_b.batches_per_step]
    sizes = [a.batch_size or 1, b.batch_size or 1] if a.batch_size and b.batch_size else [1, 1]
    if counts[0] * sizes[0] == counts[1] * sizes[1]:
        return []
    of_size = [f" of {size}" if sizes[0] != sizes[1] else "" for size in sizes]
    if counts[0] == counts[1]:
        said = f"A trains on batches{of_size[0]} a rank and B on batches{of_size[1]}"
    else:
        each = [f"{num} {'batch' if num == 1 else 'batches'}{own}" for num, own in zip(counts, of_size, strict=True)]
        said = f"A step of A takes {each[0]} a rank and one of B {each[1]}"
    rates = [trained.samples_per_s for trained in (trained_a, trained_b)]
    seen = f" Samples a second: {rates[0]:,.0f} in A, {rates[1]:,.0f} in B." if rates[0] and rates[1] else ""
    return [f"{said}; a step is not the same amount of work.{seen}"]
