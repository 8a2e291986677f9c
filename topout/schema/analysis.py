"""What `analysis.json` holds: the verdict at the top level, then measures and findings."""

from dataclasses import dataclass

from topout.schema.finding import Finding
from topout.schema.measures import ANALYSIS_VERSION, Measures, Verdict


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """One run, explained."""

    version: int = ANALYSIS_VERSION
    run: str
    """Name of the run folder."""
    script: str
    status: str
    """`finished`, `failed`, `interrupted`, `running`, or `lost`: its launcher was killed."""
    exit_code: int | None
    duration_s: float | None
    verdict: Verdict | None
    """None when nothing could be measured; `measures.not_measured` says why."""
    findings: tuple[Finding, ...]
    measures: Measures
