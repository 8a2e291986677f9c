"""Shares read off `Measures`: what the upper bounds of rules are made of.

Not for showing: a report prints the shares themselves. Every function answers None where nothing was measured, so
that a bound is never made up.
"""

from topout.schema.measures import Measures

COMPUTE = ("forward", "backward", "optimizer")


def share_of(measures: Measures, *phases: str, times: float = 1.0) -> float | None:
    """Mean over ranks of the time in these phases together."""
    if not measures.shares:
        return None
    return times * sum(measures.shares.get(phase, 0.0) for phase in phases)


def largest_share(measures: Measures, *phases: str, times: float = 1.0) -> float | None:
    """Share of the rank that spends most time in these phases.

    While one rank reads or saves, the others wait for it, so the job wins what its worst rank wins, not the mean.
    """
    if not measures.ranks:
        return share_of(measures, *phases, times=times)
    return times * max(sum(rank.shares.get(phase, 0.0) for phase in phases) for rank in measures.ranks)


def are_workers_idle(measures: Measures) -> bool:
    """Less than half of a loader's workers at work while ranks wait for them, and for no store outside.

    As if all their work had fallen into that time.
    """
    given = measures.input
    states = (given.running_share, given.opening_share, given.reading_share)
    busy_share = sum(share for share in states if share is not None)
    is_known = None not in states and given.limit == "decode" and bool(given.num_workers)
    return is_known and busy_share < 0.5 * (given.wait_share or 0.0)


def has_gpu(measures: Measures) -> bool:
    return measures.memory.device_total_bytes is not None


def ranks_per_host(measures: Measures) -> float:
    return measures.environment.num_ranks / max(measures.environment.num_hosts, 1)
