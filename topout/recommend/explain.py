"""A run folder to its explanation: what was measured, what holds the job back, and what to try.

Not for many runs: `verify.compare` sets two side by side. Nothing is written here; `report` does that.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from topout.analyze.measure import measure_run
from topout.recommend.engine import examine
from topout.schema.analysis import Analysis
from topout.schema.run_folder import RunFolder, open_run

_LEFT_WHOLE = "left whole"
"""In the notes of ranks whose input --data-share could not shorten."""


def explain_run(folder: RunFolder) -> Analysis:
    """The analysis of a run, finished or not; notes of the launcher and of broken rules join what was not measured."""
    folder, run = open_run(folder.path)
    measures, verdict = measure_run(folder)
    findings, rule_notes = examine(measures)
    notes = (*measures.not_measured, *_launcher_notes(run), *rule_notes)
    if measures.window is not None:
        # it bears on every share, so it comes first
        notes = (*_short_epochs(run, notes), *notes)
    return Analysis(
        run=folder.path.resolve().name,
        script=_script(run),
        status=str(run.get("status") or "running"),
        exit_code=_whole_or_none(run.get("exit_code")),
        duration_s=_finite_or_none(run.get("duration_s")),
        verdict=verdict,
        findings=findings,
        measures=replace(measures, not_measured=_once(notes)),
    )


def _once(notes: Iterable[str]) -> tuple[str, ...]:
    """A rank's note reaches us twice, in its own recording and through the launcher, which begin it differently."""
    kept: dict[str, str] = {}
    for note in notes:
        kept.setdefault(note[:1].lower() + note[1:], note)
    return tuple(kept.values())


def _script(run: dict[str, Any]) -> str:
    spec = run.get("spec")
    return str(spec.get("script") or "?") if isinstance(spec, dict) else "?"


def _short_epochs(run: dict[str, Any], notes: Iterable[str]) -> list[str]:
    """A sentence where epochs were shortened, and pauses of each were not."""
    spec = run.get("spec")
    share = _finite_or_none(spec.get("data_share")) if isinstance(spec, dict) else None
    # loaders without a length and Keras' input cannot be shortened, and say so
    if share is None or not 0 < share < 1 or any(_LEFT_WHOLE in note for note in notes):
        return []
    times = f"{1 / share:,.1f}".removesuffix(".0")
    return [
        f"Whole epochs: with --data-share {100 * share:.3g}% what each has once weighs up to {times} times as much "
        "(saves, starts of workers, evaluations without a loader)."
    ]


def _launcher_notes(run: dict[str, Any]) -> list[str]:
    notes = run.get("notes")
    return [str(note) for note in notes] if isinstance(notes, list) else []


def _whole_or_none(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _finite_or_none(value: Any) -> float | None:
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        # JSON has integers of any length
        return None
    return number if math.isfinite(number) else None
