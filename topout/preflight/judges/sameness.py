"""Versions and hardware: are all hosts alike?

Different libraries can hang or corrupt a collective; different hardware makes everybody wait for the slowest. On one
host the values are shown and there is nothing to compare.
"""

from collections.abc import Sequence

from topout.preflight.check import Check, Verdict, named
from topout.preflight.facts import Facts

GROUP = "Versions and hardware"
MUST_BE_EQUAL = frozenset({"topout", "python", "torch", "numpy", "CUDA", "HIP", "cuDNN", "NCCL", "tensorflow", "jax"})
"""Ranks speak to each other through these; the rest may differ and is named."""


def judge_sameness(hosts: Sequence[Facts]) -> list[Check]:
    checks = []
    for title, tables in (
        ("versions", {facts.host: facts.versions for facts in hosts}),
        ("hardware", {facts.host: facts.hardware for facts in hosts}),
    ):
        names = list(dict.fromkeys(name for table in tables.values() for name in table))
        spread = {name: _by_value(tables, name) for name in names}
        equal = [f"{name} {next(iter(values))}" for name, values in spread.items() if len(values) == 1]
        if equal:
            what = f"equal on {len(hosts)} hosts" if len(hosts) > 1 else "one host, nothing to compare"
            checks.append(
                Check(group=GROUP, name=title, verdict=Verdict.FINE, value=" · ".join(equal), expectation=what)
            )
        checks += [_mixed(name, values) for name, values in spread.items() if len(values) > 1]
    return checks


def _by_value(tables: dict[str, dict[str, str]], name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for host, table in tables.items():
        found.setdefault(table.get(name, "none"), []).append(host)
    return found


def _mixed(name: str, values: dict[str, list[str]]) -> Check:
    usual = max(values.values(), key=len)
    others = [host for hosts in values.values() if hosts is not usual for host in hosts]
    is_grave = name in MUST_BE_EQUAL
    fix = (
        f"one environment for all hosts: activate the same on {named(others)}"
        if is_grave
        else f"a mixed allocation: ask for hosts of one kind, or leave {named(others)} out"
    )
    return Check(
        group=GROUP,
        name=name,
        verdict=Verdict.UNFIT if is_grave else Verdict.WARNING,
        value="; ".join(f"{value} ({named(hosts)})" for value, hosts in values.items()),
        expectation="equal on all hosts",
        fix=fix,
        hosts=tuple(others),
    )
