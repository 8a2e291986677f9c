"""What full Summit's GPUs would read, and what could serve it."""

from topout.study.published.table import Row, Table

PIXELS = 3 * 224 * 224
IMAGES_PER_S = 1200
GPUS_PER_NODE = 6
NODES = 4608


def table() -> Table:
    need = PIXELS * 4 * IMAGES_PER_S * GPUS_PER_NODE * NODES
    local = 6e9 * NODES
    return Table(
        name="summit-storage",
        title="Input of 27,648 GPUs at 1,200 images/s each",
        source="J. Yin, Deep learning on Summit, 2020",
        unit="TB/s, or a ratio",
        rows=[
            Row(what="needed (TB/s)", published=20, predicted=need / 1e12),
            Row(what="node-local NVMe (TB/s)", published=27, predicted=local / 1e12),
            Row(what="GPFS against the need", published=0.125, predicted=2.5e12 / need),
            Row(what="NVMe against the need", published=27 / 20, predicted=local / need),
        ],
        notes=[
            f"By the talk's own formula NVMe is {local / need:.2f} times the need; {27 / 20:.2f} comes of its rounded "
            "figures. GPFS would hold training to an eighth."
        ],
    )
