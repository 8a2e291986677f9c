"""87 % at 1,024 nodes of Summit."""

from topout.study.description import put
from topout.study.fit import Machine, fit
from topout.study.published import tacc_gpu
from topout.study.published.table import Row, Table, machine

SPREAD = ("job", "compute", "transient")


def table() -> Table:
    found = machine("resnet50-v100", "summit")
    other = fit(machine("resnet50-1080ti", "maverick2-1080ti"), tacc_gpu.PUBLISHED, ["job.compute.transient"])
    spread = other.job.compute.transient
    rows = [
        Row(what=f"1,024 nodes, spread {share:.1%}{note}", published=0.87, predicted=with_spread(found, share))
        for share, note in ((0.04, ""), (0.06, ""), (0.08, ""), (spread, " (as fitted on TACC's GPU table)"))
    ]
    rows.append(Row(what="4,608 nodes, spread 6.0%", published=None,
                    predicted=put(found, SPREAD, 0.06).efficiency(4608)))  # fmt: skip
    return Table(
        name="summit-scaling",
        title="ResNet-50 on Summit, batch 256 a GPU: efficiency against one node",
        source="J. Yin, Deep learning on Summit, 2020",
        unit="efficiency",
        rows=rows,
        notes=["Nothing was fitted to this row. All-reduce hides behind backward; what is lost is waiting for the "
               "slowest of 6,144 GPUs."],
    )  # fmt: skip


def with_spread(found: Machine, share: float) -> float:
    return float(put(found, SPREAD, share).efficiency(1024))
