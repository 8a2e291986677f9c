"""ImageNet on 16, 32 and 64 nodes of Summit with LARS, as images a second."""

from topout.study.published.table import Row, Table

IMAGES = 1_281_167
EPOCHS = 90
PUBLISHED = {16: (12288, 0.750, 27.0), 32: (12288, 0.766, 17.0), 64: (15360, 0.763, 12.0)}
GPUS_PER_NODE = 6


def rate(minutes: float) -> float:
    return IMAGES * EPOCHS / (minutes * 60)


def table() -> Table:
    steps = {}
    for nodes, (batch, _, minutes) in PUBLISHED.items():
        steps[nodes] = (batch / nodes / GPUS_PER_NODE, batch / rate(minutes))
    # a step is so long before its first image, and longer by each: two points give both
    (few, short_s), (many, long_s) = steps[32], steps[16]
    each_s = (long_s - short_s) / (many - few)
    fixed_s = short_s - few * each_s
    rows = []
    for nodes, (batch, _, minutes) in PUBLISHED.items():
        predicted = batch / (fixed_s + each_s * steps[nodes][0])
        rows.append(Row(what=f"{nodes} nodes, batch {batch:,}", published=rate(minutes), predicted=predicted,
                        is_calibrated=nodes != 64))  # fmt: skip
    return Table(
        name="summit-large-batch",
        title="ResNet-50 with large batches on Summit, 90 epochs (assumed)",
        source="J. Yin, Deep learning on Summit, 2020",
        unit="images/s",
        rows=rows,
        parameters=[f"a step without images {fixed_s * 1e3:.0f} ms", f"an image {each_s * 1e3:.2f} ms"],
        notes=[
            "Minutes are rounded: 12 may be 11.5 to 12.5, which is 4 % each way. The batch of a GPU falls from 128 to "
            "40, so the part of a step that no smaller batch shortens is what bends the curve.",
            "Top-1 accuracy .750, .766 and .763 is published and not predicted.",
        ],
    )
