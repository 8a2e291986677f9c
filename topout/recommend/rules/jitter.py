"""Ranks wait for late ones, but not always for the same.

Why it matters. A step takes as long as its slowest rank. If every rank is late now and then, almost
every step has a late one, and the more ranks there are the surer it gets.

How it is measured. Waiting from a rank's own arrival at a collective to the last rank's arrival,
with no rank that is late in most steps; the part during which one rank evaluates or saves is taken
off. All that waiting is the gain.

What to do. Make the work of a step equal: bucket sequences by length, cut images to one size,
spread expensive samples over ranks. Quiet the machine: bind ranks to cores, leave a core to the
system and the loader's workers, turn off garbage collection in the loop and collect now and then
yourself:

    gc.disable()
    if step % 100 == 0: gc.collect()

Not a problem when the share is small and the job stays at this size.

Reference: F. Petrini et al., The case of the missing supercomputer performance, SC 2003.
"""

from topout.schema.finding import Rule
from topout.schema.measures import Communication, Measures, Straggler
from topout.schema.shares import share_of


def _jitter_share(measures: Measures) -> float | None:
    waiting = share_of(measures, "wait")
    if waiting is None:
        return None
    num_ranks = max(measures.environment.num_ranks, len(measures.ranks), 1)
    # while one of N ranks evaluates, N - 1 wait
    serial = (measures.serial.single_rank_share or 0.0) * (num_ranks - 1) / num_ranks
    return waiting - serial


def _is_jitter(measures: Measures) -> bool:
    return (_jitter_share(measures) or 0.0) > 0.10 and not any(late.is_persistent for late in measures.stragglers)


RULE = Rule(
    code="LB02",
    title="Ranks wait for late ones, each time another",
    measure="communication.wait_share",
    when=_is_jitter,
    because="{value:.0%} of the time ranks wait for a late one, and no rank is late in most steps.",
    advise="Make the work of a step equal over ranks (bucket by length), bind ranks to cores, leave cores "
    "to the workers.",
    gain=_jitter_share,
    fires_on=Measures(communication=Communication(wait_share=0.20), shares={"wait": 0.20}),
    quiet_on=Measures(
        communication=Communication(wait_share=0.20),
        shares={"wait": 0.20},
        stragglers=(Straggler(rank=1, host="n01", phase="backward", excess_share=0.3, is_persistent=True),),
    ),
)
