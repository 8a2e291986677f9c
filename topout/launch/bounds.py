"""Which numbers a spec may hold: asked before anybody is waited for, and by `submit` before a job waits in line.

Not how many ranks fit on a host; `roster` knows the hosts.
"""

from __future__ import annotations

from topout.schema.errors import TopoutError
from topout.schema.spec import RunSpec

_LEAST = (
    ("-n", "num_ranks", 1), ("--nodes", "nodes", 1), ("--per-node", "per_node", 1), ("--steps", "steps", 1),
    ("--restarts", "restarts", 0), ("--min-nodes", "min_nodes", 1),
)  # fmt: skip
_USUAL_START_S = 25


def check_numbers(spec: RunSpec) -> None:
    for option, name, least in _LEAST:
        value = getattr(spec, name)
        if isinstance(value, int) and value < least:
            raise _impossible(spec, f"{option} {value}", name, why=f"at least {least}", do=f"try {option} {least}")
    if not 0 < spec.start_timeout_s < float("inf"):
        given, why = f"--start-timeout {spec.start_timeout_s:g}", "a finite number of seconds above 0"
        raise _impossible(spec, given, "start_timeout_s", why=why, do=f"try --start-timeout {_USUAL_START_S}")


def check_min_nodes(spec: RunSpec, num_hosts: int) -> None:
    """More than there are would never be left by a failure; a file for the cluster may say it where one host runs."""
    fewest = spec.min_nodes
    if fewest is not None and fewest > num_hosts and spec.origins.get("min_nodes") == "command line":
        raise TopoutError(
            f"--min-nodes {fewest} is more than there are.",
            why=f"the job has {num_hosts} host{'s'[: num_hosts != 1]}, and a failure leaves no more than that",
            do=f"leave out --min-nodes, or ask the scheduler for {fewest}: topout submit --nodes {fewest} …",
        )


def _impossible(spec: RunSpec, given: str, name: str, *, why: str, do: str) -> TopoutError:
    origin = spec.origins.get(name, "command line")
    said = "" if origin == "command line" else f"; {origin} says it"
    return TopoutError(f"{given} is not possible.", why=f"it must be {why}{said}", do=do)
