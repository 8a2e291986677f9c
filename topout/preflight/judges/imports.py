"""Start of the stack: what python, numpy and torch take to load, from where, alone and with all hosts at once."""

from collections.abc import Sequence

from topout.host.file_systems import is_network
from topout.preflight.amounts import count, seconds
from topout.preflight.check import Check, Reading, Verdict, over_hosts, unmeasured
from topout.preflight.facts import Facts, ImportTime

GROUP = "Start of the stack"
_LONG_S = 15.0
_MOST_TIMES_AS_LONG = 2.0
_NOTICEABLE_S = 5.0
_FIX = "a container image (one large file), or the environment on this host's own disk, instead of many small files"


def judge_imports(hosts: Sequence[Facts]) -> list[Check]:
    commands = dict.fromkeys(entry.command for facts in hosts for entry in facts.imports)
    if not commands:
        return [unmeasured(hosts, GROUP, "imports", f"at most {seconds(_LONG_S)}", "imports")]
    checks: list[Check | None] = []
    for command in commands:
        checks += [_alone(hosts, command), _together(hosts, command)]
    checks.append(_cheapest(hosts, list(commands)))
    return [check for check in checks if check is not None]


def total_s(entry: ImportTime) -> float | None:
    parts = [entry.start_s, entry.numpy_s, entry.torch_s]
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _alone(hosts: Sequence[Facts], command: str) -> Check | None:
    def read(facts: Facts) -> Reading | None:
        entry = _entry(facts, command, alone=True)
        if entry is None:
            return None
        if entry.problem is not None:
            return Reading(text=entry.problem, verdict=Verdict.WARNING, fix=f"{command} does not start here")
        taken_s = total_s(entry) or 0.0
        verdict = Verdict.WARNING if taken_s > _LONG_S else Verdict.FINE
        return Reading(text=_text(entry), verdict=verdict, number=taken_s, fix=_FIX)

    return over_hosts(hosts, GROUP, f"{command}, one host", f"at most {seconds(_LONG_S)} in all", read, unit="s")


def _together(hosts: Sequence[Facts], command: str) -> Check | None:
    alone = next((total_s(e) for f in hosts if (e := _entry(f, command, alone=True)) and not e.problem), None)
    entries = {f.host: e for f in hosts if (e := _entry(f, command, alone=False)) is not None and not e.problem}
    if not entries:
        return None
    slowest = max(entries, key=lambda host: total_s(entries[host]) or 0.0)
    taken_s = total_s(entries[slowest]) or 0.0
    ratio = taken_s / alone if alone else None
    is_slow = taken_s > _NOTICEABLE_S and ratio is not None and ratio > _MOST_TIMES_AS_LONG
    times = "" if ratio is None else f", {ratio:.1f} times as long as alone"
    return Check(
        group=GROUP,
        name=f"{command}, {entries[slowest].num_hosts} hosts at once",
        verdict=Verdict.WARNING if is_slow else Verdict.FINE,
        value=f"{seconds(taken_s)} on the slowest ({slowest}){times}",
        expectation=f"at most {_MOST_TIMES_AS_LONG:g} times as long as alone",
        fix=_FIX if is_slow else None,
        number=taken_s,
        unit="s",
    )


def _cheapest(hosts: Sequence[Facts], commands: Sequence[str]) -> Check | None:
    """With several interpreters: which costs what, at as many hosts as there are."""
    if len(commands) < 2:
        return None
    worst: dict[str, float] = {}
    for command in commands:
        # an interpreter without torch is no cheaper, it does less
        whole = [e for f in hosts for e in f.imports if e.command == command and e.torch_s is not None]
        if whole:
            worst[command] = max(total_s(entry) or 0.0 for entry in whole)
    if len(worst) < 2:
        return None
    best = min(worst, key=lambda command: worst[command])
    return Check(
        group=GROUP,
        name="which costs what",
        verdict=Verdict.FINE,
        value="; ".join(f"{command} {seconds(value)}" for command, value in worst.items()),
        expectation=f"cheapest: {best}",
    )


def _entry(facts: Facts, command: str, *, alone: bool) -> ImportTime | None:
    return next((e for e in facts.imports if e.command == command and (e.num_hosts == 1) == alone), None)


def _text(entry: ImportTime) -> str:
    parts = (("start", entry.start_s), ("numpy", entry.numpy_s), ("torch", entry.torch_s))
    text = ", ".join(f"{name} {seconds(value)}" for name, value in parts if value is not None)
    if entry.torch_s is None:
        text += ", no torch"
    files = f"{count(entry.num_files)} files" if entry.num_files else "files"
    where = f" from {entry.file_system}" if entry.file_system else ""
    shared = ", a network file system" if is_network(entry.file_system) else ""
    image = f", in a container ({entry.container})" if entry.container else ""
    return f"{text}; {files}{where}{shared}{image}"
