"""Rates of full-Summit trainings, against what the GPUs can do at most."""

from topout.study.published.table import Row, Table

PEAK_OF_ONE = 125e12
GPUS = 27648
PUBLISHED = {"Climate, DeepLabV3+": (0.999, 27360), "Medical, MENNDL": (1.3, None), "Materials, Tiramisu": (1.5, 27600)}


def table() -> Table:
    rows = [Row(what="all GPUs at peak (EFLOP/s)", published=3.0, predicted=GPUS * PEAK_OF_ONE / 1e18)]
    notes = []
    for name, (rate, gpus) in PUBLISHED.items():
        rows.append(Row(what=f"{name} (EFLOP/s, sustained)", published=rate, predicted=None))
        each = rate * 1e18 / (gpus or GPUS)
        notes.append(f"{name}: {each / 1e12:.0f} TFLOP/s a GPU, {each / PEAK_OF_ONE:.0%} of its peak.")
    notes.append(
        "Nothing is predicted: the rate of one GPU is not in the talk, and a model that is told it is told all."
    )
    return Table(
        name="exaflops",
        title="Deep learning on all of Summit, FP16",
        source="J. Yin, Deep learning on Summit, 2020",
        unit="EFLOP/s",
        rows=rows,
        notes=notes,
    )
