"""Horovod's coordinator on all of Summit, and what the bit vector changed."""

from topout.study.description import put
from topout.study.negotiation import negotiation_s
from topout.study.published.table import Row, Table, machine

NODES = 4600
PUBLISHED_S = 9.235
FASTEST_MESSAGE_S = 0.68e-6


def table() -> Table:
    found = machine("resnet50-v100", "summit")
    ranks = NODES * found.system.ranks_per_node
    message_s = PUBLISHED_S / ranks / found.job.gradients.tensors
    improvements = {}
    for each in (message_s, FASTEST_MESSAGE_S):
        old = put(
            put(found, ("job", "gradients", "negotiation"), "coordinator"), ("job", "gradients", "message_s"), each
        )
        improvements[each] = found.samples_per_s(NODES) / old.samples_per_s(NODES)
        if each == message_s:
            agreed = negotiation_s(old.job.gradients, NODES, old.system)
    bits = negotiation_s(found.job.gradients, NODES, found.system)
    return Table(
        name="summit-negotiation",
        title="Agreeing on which gradients are ready, 27,600 ranks",
        source="J. Yin, Deep learning on Summit, 2020; arXiv 1909.11150",
        unit="seconds, or a ratio",
        rows=[
            Row(what="coordinator (s)", published=PUBLISHED_S, predicted=agreed, is_calibrated=True),
            Row(what="bit vector (s)", published=None, predicted=bits),
            Row(
                what=f"faster by, at {message_s * 1e6:.2f} us a message", published=8, predicted=improvements[message_s]
            ),
            Row(
                what=f"faster by, at {FASTEST_MESSAGE_S * 1e6:.2f} us a message",
                published=8,
                predicted=improvements[FASTEST_MESSAGE_S],
                is_calibrated=True,
            ),
        ],
        parameters=[f"message {message_s * 1e6:.2f} us", f"or {FASTEST_MESSAGE_S * 1e6:.2f} us"],
        notes=[
            "The 9.2 s are the sum over tensors of a timeline, which overlap, and the number of tensors (161) and of "
            "ranks behind it are assumptions: as one step's cost they would mean more than the published eightfold. "
            "0.68 us a message give that factor; TACC's table asks for some 9 us."
        ],
    )
