"""ResNet-50 on up to 16 nodes of four GTX 1080 Ti, from FanStore."""

from topout.study.fit import fit
from topout.study.published.table import Row, Table, machine, predicted_rows

PUBLISHED = {1: 544.0, 4: 1902.0, 8: 4050.0, 16: 7867.0}
CALIBRATED = (1, 8)


def monotone_floor(points: dict[int, float]) -> float:
    """The least largest error of any curve whose efficiency never rises with the nodes.

    Where a later point is more efficient than an earlier one, such a curve can at best pass between the two.
    """
    by_nodes = sorted((nodes, rate / nodes) for nodes, rate in points.items())
    worst = 0.0
    for index, (_, early) in enumerate(by_nodes):
        for _, late in by_nodes[index + 1 :]:
            if late > early:
                # k (1+e) early' = (1-e) late' for the same k: e = (late - early) / (late + early)
                worst = max(worst, (late - early) / (late + early))
    return worst


def table() -> Table:
    start = machine("resnet50-1080ti", "maverick2-1080ti")
    found = fit(start, {nodes: PUBLISHED[nodes] for nodes in CALIBRATED}, ["job.compute.transient"])
    whole = fit(start, PUBLISHED, ["job.compute.transient", "job.gradients.message_s"], is_worst=True)
    worst = max(abs(whole.samples_per_s(nodes) / rate - 1) for nodes, rate in PUBLISHED.items())
    ideal = [Row(what=f"{nodes} nodes, ideal", published=rate, predicted=nodes * PUBLISHED[1])
             for nodes, rate in ((4, 2176.0), (8, 4352.0), (16, 8704.0))]  # fmt: skip
    return Table(
        name="tacc-gpu",
        title="ResNet-50 on nodes of 4 GTX 1080 Ti, batch 64 a GPU, FanStore",
        source="Z. Zhang, Scalable deep learning at TACC, 2019, slide 17",
        unit="images/s",
        rows=predicted_rows(found, PUBLISHED, set(CALIBRATED)) + ideal,
        parameters=[f"spread of a step {found.job.compute.transient:.2%}"],
        notes=[
            f"Fitted to all four points with two numbers, the largest error is {worst:.2%}. No curve whose efficiency "
            f"only falls can be below {monotone_floor(PUBLISHED):.2%}: four nodes were less efficient than eight.",
        ],
    )
