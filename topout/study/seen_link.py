"""A link that nobody measured: as fast as brings the model's exposed communication, where it was recorded, to the seen.

Bytes over the seconds they were seen to take would be too fast by all that hid behind backward, and an all-reduce moves
each byte nearly twice. Where nearly nothing stuck out, any faster link would have done as well: then only the slowest
that would is known. Latency is a usual one, or less where so much was not seen. Not for what a doctor measured: see
`anchor`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from topout.study.anchor import TELLING, exposed_at_calibration_s
from topout.study.description import describe
from topout.study.job import Job
from topout.study.system import Link, System

LATENCY_S = 1e-4
UNKNOWN_BYTES_PER_S = 1e9
_LEAST_LATENCY_S = 1e-7
_SLOWEST, _FASTEST = 1e3, 1e14
_HALVINGS = 60


def seen_link(
    job: Mapping[str, Any],
    system: Mapping[str, Any],
    names: Sequence[str],
    notes: list[str],
    *,
    exposed_s: float | None,
    step_s: float,
) -> dict[str, Any]:
    """For the links `names`, which `system` lacks; `exposed_s` is what a step was seen to show, None: not known."""
    if exposed_s is None or not job["gradients"]["bytes"]:
        seen = "How long all-reduces took" if job["gradients"]["bytes"] else "An all-reduce"
        return _unknown(f"{seen} was not seen, and no link measured", notes)
    latency_s, value = _solve(job, system, names, max(exposed_s, TELLING * step_s))
    if value > _FASTEST / 2:
        return _unknown(
            "The links that were measured explain all communication that showed, and tell nothing of the other", notes
        )
    if exposed_s >= TELLING * step_s:
        return _link(latency_s, value / 2, value, value * 2)
    notes.append(
        "Nearly all communication hid behind backward, so of the link it is only known that it gives "
        f"{value / 1e9:.2g} GB/s or more; its range is wide. topout doctor measures it."
    )
    likely = max(3 * value, UNKNOWN_BYTES_PER_S)
    return _link(latency_s, value, likely, 3 * likely)


def _unknown(why: str, notes: list[str]) -> dict[str, Any]:
    notes.append(f"{why}: bandwidth is taken for 1 GB/s. Set it, or give --doctor.")
    value = UNKNOWN_BYTES_PER_S
    return _link(LATENCY_S, value / 2, value, value * 2)


def _solve(
    job: Mapping[str, Any], system: Mapping[str, Any], names: Sequence[str], wanted_s: float
) -> tuple[float, float]:
    """Latency, and the bandwidth at which the model shows so many seconds."""
    described = describe(Job, dict(job), "job").value
    any_link = _link(LATENCY_S, UNKNOWN_BYTES_PER_S, UNKNOWN_BYTES_PER_S, UNKNOWN_BYTES_PER_S)
    machine = describe(System, dict(system) | dict.fromkeys(names, any_link), "system").value

    def shows(latency_s: float, bytes_per_s: float) -> float:
        links: dict[str, Any] = dict.fromkeys(names, Link(latency_s=latency_s, bytes_per_s=bytes_per_s))
        return exposed_at_calibration_s(described, replace(machine, **links))

    latency_s = LATENCY_S
    while latency_s > _LEAST_LATENCY_S and shows(latency_s, _FASTEST) > wanted_s / 2:
        latency_s /= 2
    slow, fast = _SLOWEST, _FASTEST
    for _ in range(_HALVINGS):
        middle = (slow * fast) ** 0.5
        slow, fast = (middle, fast) if shows(latency_s, middle) > wanted_s else (slow, middle)
    return latency_s, fast


def _link(latency_s: float, low: float, value: float, high: float) -> dict[str, Any]:
    return {"latency_s": latency_s, "bytes_per_s": {"value": value, "low": low, "high": high}}
