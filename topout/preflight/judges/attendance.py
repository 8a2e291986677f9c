"""Did every host come, and did its probe get through?

A host that says nothing is the first thing to know: no other check speaks of it.
"""

from collections.abc import Sequence

from topout.preflight.check import Check, Verdict, named
from topout.preflight.facts import Facts

GROUP = "Hosts"
_NOT_SEEN = "A host that does not see it keeps its own in a temporary one: name one that all see with --runs DIR"


def judge_attendance(hosts: Sequence[Facts], num_hosts: int, absent: Sequence[str]) -> list[Check]:
    """`absent` are hosts that were started and left no findings."""
    checks = [
        Check(
            group=GROUP,
            name="hosts",
            verdict=Verdict.UNFIT if absent else Verdict.FINE,
            value=f"{len(hosts)} of {num_hosts}: {named([facts.host for facts in hosts])}",
            expectation="every host reports",
            fix=f"{named(absent)} left no findings: leave it out, or see logs/ in the run folder. {_NOT_SEEN}"
            if absent
            else None,
            hosts=tuple(absent),
            number=float(len(hosts)),
        )
    ]
    stuck = [facts for facts in hosts if facts.stage is not None]
    if stuck:
        where = "; ".join(f"{facts.host} in {facts.stage!r}" for facts in stuck[:3])
        checks.append(
            Check(
                group=GROUP,
                name="probes that did not end",
                verdict=Verdict.UNFIT,
                value=where,
                expectation="each stage ends within seconds",
                fix="what hangs a probe hangs a training: look at that file system, network or device on that host",
                hosts=tuple(facts.host for facts in stuck),
            )
        )
    lost = [facts for facts in hosts if "meeting" in facts.not_measured]
    if lost:
        checks.append(
            Check(
                group=GROUP,
                name="meeting",
                verdict=Verdict.UNFIT,
                value="; ".join(f"{facts.host}: {facts.not_measured['meeting']}" for facts in lost[:3]),
                expectation="every host reaches the first",
                fix="the port is filtered between hosts, or the interface is the wrong one: try --interface",
                hosts=tuple(facts.host for facts in lost),
            )
        )
    return checks
