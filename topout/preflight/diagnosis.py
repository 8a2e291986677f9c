"""What the doctor says of all hosts together: checks, fitted links, and everything the probes found.

The JSON form is versioned and for other programs: the simulator and the planner take link classes, kernel rates and
file system rates from it.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from topout import __version__
from topout.preflight.check import Check, Verdict
from topout.preflight.facts import Facts
from topout.preflight.judges.attendance import judge_attendance
from topout.preflight.judges.clocks import judge_clocks
from topout.preflight.judges.framework import judge_framework
from topout.preflight.judges.imports import judge_imports
from topout.preflight.judges.kernels import Roof, judge_kernels, roof_of
from topout.preflight.judges.limits import judge_limits
from topout.preflight.judges.links import FittedLink, fit_classes, judge_links
from topout.preflight.judges.sameness import judge_sameness
from topout.preflight.judges.storage import judge_storage
from topout.preflight.judges.wiring import judge_wiring

DIAGNOSIS_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """`doctor.json`."""

    version: int = DIAGNOSIS_VERSION
    topout_version: str = __version__
    verdict: Verdict
    """The worst of the checks; `not measured` counts as fine."""
    started_at: str
    duration_s: float
    checks: tuple[Check, ...]
    links: tuple[FittedLink, ...]
    """alpha and beta of each class of link."""
    roofs: dict[str, Roof] = field(default_factory=dict)
    """Host -> peaks, measured rates and memory bandwidth."""
    hosts: tuple[Facts, ...] = ()
    """What each host's probe found: kernels, file systems, imports, limits, with all samples."""

    @property
    def is_unfit(self) -> bool:
        return self.verdict is Verdict.UNFIT


def to_json(diagnosis: Diagnosis) -> str:
    return msgspec.json.format(msgspec.json.encode(diagnosis), indent=1).decode() + "\n"


def json_schema() -> str:
    """The schema of doctor.json, generated from the dataclasses."""
    return json.dumps(msgspec.json.schema(Diagnosis), indent=2) + "\n"


def diagnose(
    hosts: Sequence[Facts], *, num_hosts: int, absent: Sequence[str], sweeps: bool, started_at: str, duration_s: float
) -> Diagnosis:
    checks = [
        *judge_attendance(hosts, num_hosts, absent),
        *judge_sameness(hosts),
        *judge_wiring(hosts),
        *judge_limits(hosts),
        *judge_framework(hosts),
        *judge_kernels(hosts, sweeps=sweeps),
        *judge_links(hosts),
        *judge_storage(hosts),
        *judge_imports(hosts),
        *judge_clocks(hosts),
    ]
    worst = max((check.verdict for check in checks), key=lambda verdict: verdict.badness)
    return Diagnosis(
        verdict=Verdict.FINE if worst is Verdict.NOT_MEASURED else worst,
        started_at=started_at,
        duration_s=round(duration_s, 3),
        checks=tuple(checks),
        links=fit_classes(hosts),
        roofs={facts.host: roof for facts in hosts if (roof := roof_of(facts)) is not None},
        hosts=tuple(hosts),
    )


if __name__ == "__main__":
    sys.stdout.write(json_schema())
