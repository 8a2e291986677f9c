"""Clocks of the hosts against the first one's: the time of day, and how fast the monotonic clocks drift apart.

Recordings are aligned by their collectives, so a skew of the monotonic clocks is only reported; time of day matters for
files, logs and authentication.
"""

from collections.abc import Sequence

from topout.preflight.amounts import seconds
from topout.preflight.check import Check, Verdict
from topout.preflight.facts import ClockReading, Facts

GROUP = "Clocks"
_NOTICEABLE_S = 0.1
_AUTHENTICATION_S = 300.0
_DRIFT_PPM = 200.0
_FIX = "start time synchronisation on that host (chrony, ntpd); munge and Kerberos refuse 5 minutes"


def judge_clocks(hosts: Sequence[Facts]) -> list[Check]:
    readings = [reading for facts in hosts for reading in facts.clocks]
    if not readings:
        return []
    worst = max(readings, key=lambda reading: abs(reading.realtime_offset_s))
    offset_s = abs(worst.realtime_offset_s)
    verdict = Verdict.UNFIT if offset_s > _AUTHENTICATION_S else Verdict.FINE
    if _NOTICEABLE_S + worst.uncertainty_s < offset_s <= _AUTHENTICATION_S:
        verdict = Verdict.WARNING
    monotonic = max(readings, key=lambda reading: abs(reading.monotonic_offset_s))
    checks = [
        Check(
            group=GROUP,
            name="time of day",
            verdict=verdict,
            value=f"{_offset(worst.realtime_offset_s, worst)} ({worst.host})",
            expectation=f"within {seconds(_NOTICEABLE_S)} of the first host",
            fix=None if verdict is Verdict.FINE else _FIX,
            hosts=() if verdict is Verdict.FINE else (worst.host,),
            number=worst.realtime_offset_s,
            unit="s",
        ),
        Check(
            group=GROUP,
            name="monotonic clocks",
            verdict=Verdict.FINE,
            value=f"{_offset(monotonic.monotonic_offset_s, monotonic)} ({monotonic.host})",
            expectation="any: hosts start at different times",
            number=monotonic.monotonic_offset_s,
            unit="s",
        ),
    ]
    drift = _drift(readings)
    return [*checks, drift] if drift else checks


def drift_ppm(first: ClockReading, second: ClockReading) -> tuple[float, float]:
    """(drift, its uncertainty) in millionths between two readings of one host."""
    between_s = second.at_s - first.at_s
    change_s = second.monotonic_offset_s - first.monotonic_offset_s
    return 1e6 * change_s / between_s, 1e6 * (first.uncertainty_s + second.uncertainty_s) / between_s


def _drift(readings: Sequence[ClockReading]) -> Check | None:
    by_host: dict[str, list[ClockReading]] = {}
    for reading in readings:
        by_host.setdefault(reading.host, []).append(reading)
    pairs = {host: drift_ppm(found[0], found[-1]) for host, found in by_host.items() if len(found) > 1}
    if not pairs:
        return None
    host = max(pairs, key=lambda name: abs(pairs[name][0]))
    drift, uncertainty = pairs[host]
    is_fast = abs(drift) - uncertainty > _DRIFT_PPM
    return Check(
        group=GROUP,
        name="drift of monotonic clocks",
        verdict=Verdict.WARNING if is_fast else Verdict.FINE,
        value=f"{round(drift):+d} ± {uncertainty:.0f} ppm ({host})",
        expectation=f"within {_DRIFT_PPM:.0f} ppm",
        fix=f"the clock of {host} runs at another rate: see its clock source in /sys/devices/system/clocksource"
        if is_fast
        else None,
        number=drift,
        unit="ppm",
    )


def _offset(offset_s: float, reading: ClockReading) -> str:
    sign = "+" if offset_s >= 0 else "−"
    return f"{sign}{seconds(abs(offset_s))} ± {seconds(reading.uncertainty_s)}"
