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


def explain_run(folder: RunFolder) -> Analysis:
    """The analysis of a run, finished or not; notes of the launcher and of broken rules join what was not measured."""
    folder, run = open_run(folder.path)
    measures, verdict = measure_run(folder)
    findings, rule_notes = examine(measures)
    notes = (*measures.not_measured, *_launcher_notes(run), *rule_notes)
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


def _launcher_notes(run: dict[str, Any]) -> list[str]:
    notes = run.get("notes")
    return [str(note) for note in notes] if isinstance(notes, list) else []


def _whole_or_none(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _finite_or_none(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
