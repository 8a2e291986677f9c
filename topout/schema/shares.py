"""Shares read off `Measures`: what the upper bounds of rules are made of.

Not for showing: a report prints the shares themselves. Every function answers None where nothing was measured, so
that a bound is never made up.
"""

from topout.schema.measures import Input, Measures

MOSTLY_IDLE = 0.5
"""Who works for less than this part of the time is mostly idle."""
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


def exposed_transfer_share(measures: Measures) -> float | None:
    """Time in which ranks wait for the wire; on an accelerator it lies inside backward, and kernels tell it apart."""
    told = [measures.communication.transfer_share]
    if measures.device is not None and len(measures.ranks) > 1:
        # kernels that wait for neighbours and peers are communication, too, and have phases of their own
        others = sum(measures.shares.get(phase, 0.0) for phase in ("bubble", "tensor"))
        told.append(max(0.0, measures.device.exposed_communication_share - others))
    return max((share for share in told if share is not None), default=None)


def working_share(given: Input) -> float | None:
    """The largest share of a loader's workers that can have been at work while ranks waited; None where not known.

    As if all their work had fallen into that time; 1 at most.
    """
    states = [given.running_share, given.opening_share, given.reading_share]
    known = [share for share in states if share is not None]
    if len(known) < len(states) or not given.num_workers or not given.wait_share:
        return None
    return min(1.0, sum(known) / given.wait_share)


def are_workers_idle(measures: Measures) -> bool:
    """Most of them while ranks wait for batches, and for no store outside: more workers would be idle, too."""
    at_work = working_share(measures.input)
    return measures.input.limit == "decode" and at_work is not None and at_work < MOSTLY_IDLE


def computes_on_arm(measures: Measures) -> bool:
    """On processors, not on a GPU beside them."""
    return not has_gpu(measures) and measures.environment.processor in ("aarch64", "arm64")


def has_gpu(measures: Measures) -> bool:
    return measures.memory.device_total_bytes is not None


def ranks_per_host(measures: Measures) -> float:
    return measures.environment.num_ranks / max(measures.environment.num_hosts, 1)
