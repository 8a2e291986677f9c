"""Two run folders to a comparison: their steady steps, and what makes them hard to compare.

Not the statistics: those are in `compare`, on arrays.
"""

import numpy as np

from topout.analyze.series import Series, load_series
from topout.schema.errors import TopoutError
from topout.schema.measures import PHASES
from topout.schema.run_folder import RunFolder, open_run
from topout.verify.compare import Comparison, StepPhases, Steps, compare_steps


def compare_runs(a: RunFolder, b: RunFolder) -> Comparison:
    """B against A, over the steady steps of each."""
    series_a, series_b = _series(a), _series(b)
    a_step_ns, a_phase_ns = _steady(series_a)
    b_step_ns, b_phase_ns = _steady(series_b)
    return compare_steps(
        a_step_ns,
        b_step_ns,
        a_phase_ns,
        b_phase_ns,
        phases=PHASES,
        names=(str(a.path), str(b.path)),
        notes=(*_going(a, b), *_notes(series_a, series_b)),
    )


def _series(folder: RunFolder) -> Series:
    series = load_series(folder)
    if series is None:
        raise TopoutError(
            f"{folder.path} holds no steps to compare.",
            why="no rank completed a step while it was recorded",
            do=f"topout analyze {folder.path}   says what was measured",
        )
    return series


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
    if a.batch_size and b.batch_size and a.batch_size != b.batch_size:
        notes.append(
            f"A trains on batches of {a.batch_size} a rank and B on batches of {b.batch_size}; a step is not the same "
            "amount of work."
        )
    if a.is_split_withheld != b.is_split_withheld:
        told = "A" if a.is_split_withheld else "B"
        notes.append(
            f"Waiting counts as transfer in {told}, where clocks of hosts disagree; compare the two phases together."
        )
    return tuple(notes)
