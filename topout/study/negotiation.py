"""What it costs to agree, in every step, on which gradients all ranks have: Horovod's coordinator, or a bit vector.

    coordinator      rank 0 reads a message of every rank for every tensor: n tensors c, in series
    bitvector        one all-reduce of a bit a tensor: ceil(log2 n) (a + tensors/8 b)
    none             DDP agrees once, when the model is wrapped

Not the time that tensors then take to travel.
"""

from math import ceil, log2

from topout.study.job import Gradients
from topout.study.system import System

WAYS = ("none", "coordinator", "bitvector")


def negotiation_s(gradients: Gradients, nodes: int, system: System) -> float:
    """All of a step's; it is spread over the groups in which gradients travel."""
    ranks = nodes * system.ranks_per_node
    if ranks < 2 or gradients.negotiation == "none":
        return 0.0
    if gradients.negotiation == "coordinator":
        return ranks * gradients.tensors * gradients.message_s
    link = system.between if nodes > 1 else system.inside
    return ceil(log2(ranks)) * (link.latency_s + gradients.tensors / 8 / link.bytes_per_s)
