"""The same job from Lustre: four numbers on a slide that do not fit together."""

from topout.study.description import put
from topout.study.published.table import Row, Table, machine
from topout.study.storage import samples_per_s


def table() -> Table:
    found = machine("resnet50-1080ti", "maverick2-1080ti")
    lustre = put(put(found, ("job", "input", "source"), "shared"), ("job", "gradients", "negotiation"), "none")
    rates = {nodes: nodes * samples_per_s(lustre.job.input, nodes, lustre.system) for nodes in (1, 4, 8, 16)}
    rows = [
        Row(what="1 node", published=447.0, predicted=rates[1], is_calibrated=True),
        Row(what="4 nodes", published=270.0, predicted=rates[4]),
        Row(what="8 nodes", published=2467.0, predicted=rates[8], is_calibrated=True),
        Row(what="16 nodes", published=2786.0, predicted=rates[16], is_calibrated=True),
    ]
    return Table(
        name="tacc-lustre",
        title="ResNet-50 on nodes of 4 GTX 1080 Ti, from Lustre: inconsistent",
        source="Z. Zhang, Scalable deep learning at TACC, 2019, slides 13 and 17",
        unit="images/s",
        rows=rows,
        parameters=["a node alone 448 files/s", "servers 2,850 files/s", "sharpness 2.9"],
        notes=[
            "2,467 and 2,786 exceed what four nodes can compute (2,176), so they belong to 8 and 16 nodes. 447 and 270 "
            "are then 1 and 4 nodes in some order, and either order asks for a jump of more than five times from 4 to "
            "8 nodes. Three numbers on three points are no test, and the fourth point cannot be met: shared storage "
            "on a busy day, or a misread slide.",
            f"2,786 files/s of 110 KB are {2786 * 0.11:.0f} MB/s: metadata, not bandwidth, was the limit.",
        ],
    )
