"""One rank is late in most steps, and the others wait for it.

Why it matters. In synchronous training the slowest rank sets the pace. One slow host costs as much
as if all were slow.

How it is measured. Every rank's busy time a step, up to its own arrival at the last collective: an
all-reduce equalises the ends of backward, so only arrivals tell who was late. A rank is named when
it is late in most steps. The gain is the time the most patient rank waits, serial phases not
counted.

What to do. The named phase says where to look:

    input      its data are further away or its samples larger: shuffle over ranks, check the mount on that host
    forward    its samples are longer (sequence lengths, image sizes): sort into buckets of equal cost
    backward   a slow device: clock, temperature, another process on it (nvidia-smi -q -d PERFORMANCE, top)
    other      extra work on that rank, often rank 0: logging, plotting, saving

Exchange the host or leave it out (`--exclude=HOST` with Slurm); if the rank stays slow elsewhere,
its work is the cause.

Not a problem when the same rank is given more work on purpose, as with pipeline stages of unequal
size.
"""

from topout.schema.finding import Rule
from topout.schema.measures import SERIAL_PHASES, Communication, Measures, Straggler
from topout.schema.shares import largest_share


def _is_held_up(measures: Measures) -> bool:
    # stages of a pipeline may differ (PP02 says so); only who waits in a collective is held up by a rank
    if measures.pipeline is not None and (_waiting(measures) or 0.0) < 0.05:
        return False
    return bool(_late(measures))


def _late(measures: Measures) -> list[Straggler]:
    return [
        late
        for late in measures.stragglers
        if late.is_persistent and late.excess_share > 0.05 and late.phase not in SERIAL_PHASES
    ]


def _gain(measures: Measures) -> float | None:
    # where clocks do not allow to tell waiting from transfer, the extra time of the late rank is the bound
    if measures.communication.wait_share is None:
        return max(late.excess_share for late in _late(measures))
    waiting = _waiting(measures)
    return None if waiting is None else waiting - (measures.serial.single_rank_share or 0.0)


def _waiting(measures: Measures) -> float | None:
    """Of the most patient rank; among tensor-parallel peers only the part that is no transfer."""
    peers = measures.tensor_parallel
    if peers is None or not peers.share or not peers.wait_share:
        return largest_share(measures, "wait")
    tensor = largest_share(measures, "tensor", times=peers.wait_share / peers.share)
    return max(largest_share(measures, "wait") or 0.0, tensor or 0.0)


RULE = Rule(
    code="LB01",
    title="One rank holds the others up",
    when=_is_held_up,
    because="Rank {rank} on {host} is late in most steps: it is busy longer than the others by {excess:.0%} of a "
    "step, mostly in its {phase}.",
    advise="Look at {phase} of rank {rank} on {host}: its device (clock, heat, other processes) and its "
    "share of the work.",
    gain=_gain,
    fires_on=Measures(
        communication=Communication(wait_share=0.25),
        shares={"wait": 0.25},
        stragglers=(Straggler(rank=2, host="n01", phase="backward", excess_share=0.33, is_persistent=True),),
    ),
    quiet_on=Measures(
        communication=Communication(wait_share=0.25),
        shares={"wait": 0.25},
        stragglers=(Straggler(rank=0, host="n01", phase="evaluation", excess_share=0.33, is_persistent=False),),
    ),
)
