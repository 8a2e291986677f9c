"""File systems: what they are, how much is free, and how fast small and large files come out of them."""

from collections.abc import Sequence
from functools import partial

from topout.host.file_systems import is_network
from topout.preflight.amounts import count, rate, size
from topout.preflight.check import Check, Reading, Verdict, over_hosts
from topout.preflight.facts import RUN_FOLDER, Facts, Place

GROUP = "File systems"
_ENOUGH_OPENS_PER_S = 1000.0
_AMPLE_OPENS_PER_S = 10_000.0
_ENOUGH_BYTES_PER_S = 100e6
_LITTLE_ROOM_BYTES = 2**30
_NO_ROOM_BYTES = 16 << 20


def judge_storage(hosts: Sequence[Facts]) -> list[Check]:
    purposes = dict.fromkeys(place.purpose for facts in hosts for place in facts.places)
    checks: list[Check | None] = []
    for purpose in purposes:
        read = partial(_named, purpose=purpose)
        checks.append(over_hosts(hosts, GROUP, purpose, "there on every host, with room", read))
        checks.append(_rates(hosts, purpose))
    checks.append(_scattered(hosts))
    return [check for check in checks if check is not None] + _stuck(hosts)


def _place(facts: Facts, purpose: str) -> Place | None:
    return next((place for place in facts.places if place.purpose == purpose), None)


def _named(facts: Facts, purpose: str) -> Reading | None:
    place = _place(facts, purpose)
    if place is None:
        return None
    if place.free_bytes is None:
        fix = "give a path that every host sees" if purpose == "data" else "mend it, or choose another place"
        text = f"{place.path}: {place.problem or 'cannot be read'}"
        return Reading(text=text, verdict=Verdict.UNFIT, fix=fix)
    source = f" from {place.mounted_from}" if is_network(place.file_system) else ""
    text = f"{place.file_system or 'unknown'}{source} at {place.mounted_at}, {size(place.free_bytes)} free"
    needs_room = purpose != "data"
    if needs_room and (place.free_bytes < _NO_ROOM_BYTES or place.free_inodes == 0):
        return Reading(text=text, verdict=Verdict.UNFIT, number=place.free_bytes, fix=f"make room in {place.path}")
    if needs_room and place.free_bytes < _LITTLE_ROOM_BYTES:
        return Reading(text=text, verdict=Verdict.WARNING, number=place.free_bytes, fix=f"make room in {place.path}")
    return Reading(text=text, number=place.free_bytes)


def _scattered(hosts: Sequence[Facts]) -> Check | None:
    """Hosts that do not see the run folder keep the files of their ranks in a temporary one of their own."""
    paths = [place.path for facts in hosts if (place := _place(facts, RUN_FOLDER)) is not None]
    if len(set(paths)) < 2:
        return None
    fix = "name one with --runs DIR; else a report has only the ranks of hosts that see it"

    def read(facts: Facts) -> Reading | None:
        place = _place(facts, RUN_FOLDER)
        if place is None:
            return None
        return Reading(text=place.path, verdict=Verdict.FINE if place.path == paths[0] else Verdict.WARNING, fix=fix)

    return over_hosts(hosts, GROUP, f"{RUN_FOLDER}: shared", "one folder that all hosts see", read)


def _rates(hosts: Sequence[Facts], purpose: str) -> Check | None:
    def read(facts: Facts) -> Reading | None:
        place = _place(facts, purpose)
        if place is None or place.opens_per_s is None:
            return None
        parts = [f"{count(place.opens_per_s)} opens/s"]
        parts += [f"{count(place.stats_per_s)} stat/s"] if place.stats_per_s else []
        parts += [f"read {rate(place.read_bytes_per_s)}"] if place.read_bytes_per_s else []
        parts += [f"write {rate(place.write_bytes_per_s)}"] if place.write_bytes_per_s else []
        is_slow = place.opens_per_s < _ENOUGH_OPENS_PER_S or (place.read_bytes_per_s or 1e12) < _ENOUGH_BYTES_PER_S
        fix = "pack small files into few large ones, or copy them to this host's own disk first (see temporary folder)"
        verdict = Verdict.WARNING if is_slow else Verdict.FINE
        return Reading(text=", ".join(parts), verdict=verdict, number=place.opens_per_s, fix=fix)

    places = [place for facts in hosts if (place := _place(facts, purpose)) is not None]
    ways = dict.fromkeys(place.method for place in places if place.method)
    method = f"; {next(iter(ways))}" if ways else ""
    expectation = f"at least {count(_ENOUGH_OPENS_PER_S)} opens/s and {rate(_ENOUGH_BYTES_PER_S)}{method}"
    check = over_hosts(
        hosts, GROUP, f"{purpose}: rates", expectation, read, unit="opens/s", is_rate=True, ample=_AMPLE_OPENS_PER_S
    )
    problems = [place.problem for place in places if place.problem and place.free_bytes is not None]
    if check is None and problems:
        return Check(
            group=GROUP,
            name=f"{purpose}: rates",
            verdict=Verdict.NOT_MEASURED,
            value=str(problems[0]),
            expectation=expectation,
        )
    return check


def _stuck(hosts: Sequence[Facts]) -> list[Check]:
    found = []
    for facts in hosts:
        for stage, why in facts.not_measured.items():
            if stage.startswith("storage: "):
                name = f"{stage.removeprefix('storage: ')} on {facts.host}"
                found.append(
                    Check(group=GROUP, name=name, verdict=Verdict.NOT_MEASURED, value=why, expectation="measured")
                )
    return found
