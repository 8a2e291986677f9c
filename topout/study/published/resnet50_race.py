"""The race of ResNet-50: hours on eight GPUs to minutes on thousands."""

from topout.study.description import put
from topout.study.published.table import Row, Table, machine

BASELINE_MINUTES = 29 * 60
PUBLISHED = {
    "Goyal et al., 256 P100": (60, 29), "Codreanu et al.": (62, 28), "You et al.": (31, 56),
    "Preferred Networks, 1,024 P100": (15, 116), "Tencent and HKBU": (6.6, 264), "Sony": (224 / 60, 466),
    "Google, 1,024 TPUv3": (2.2, 791),
}  # fmt: skip
SAME_DEVICE = {"Goyal et al., 256 P100": 256, "Preferred Networks, 1,024 P100": 1024}


def table() -> Table:
    found = put(machine("resnet50-v100", "summit"), ("system", "ranks_per_node"), 8)
    rows = [Row(what=name, published=speedup, predicted=BASELINE_MINUTES / minutes)
            for name, (minutes, speedup) in PUBLISHED.items()]  # fmt: skip
    for name, gpus in SAME_DEVICE.items():
        nodes = gpus // 8
        rows.append(Row(what=f"{name}: from the model", published=PUBLISHED[name][1],
                        predicted=nodes * found.efficiency(nodes)))  # fmt: skip
    return Table(
        name="resnet50-race",
        title="Speed-up of 90 epochs over eight P100 (29 hours)",
        source="Z. Zhang, Scalable deep learning at TACC, 2019, slide 9; minutes recalled from the papers",
        unit="times",
        rows=rows,
        notes=[
            "The first seven rows only turn minutes into factors. The last two predict: as many nodes of eight GPUs, "
            "a spread of 6 % and all-reduce hidden behind backward. The others changed the device, the epochs or both."
        ],
    )
