"""POP efficiencies of ResNet-50 on CLAIX: a product that should hold."""

from topout.study.published.table import Row, Table

PUBLISHED = {64: (0.34, 0.99, 0.33), 48: (0.27, 0.99, 0.26)}
HALF = 0.005


def table() -> Table:
    rows, notes = [], []
    for gpus, (parallel, balance, communication) in PUBLISHED.items():
        rows.append(Row(what=f"{gpus} GPUs, parallel efficiency", published=parallel,
                        predicted=balance * communication))  # fmt: skip
        low, high = ((balance + sign * HALF) * (communication + sign * HALF) for sign in (-1, 1))
        verdict = "within" if low <= parallel + HALF and high >= parallel - HALF else "outside"
        notes.append(
            f"{gpus} GPUs: load balance x communication efficiency lies between {low:.3f} and {high:.3f} for figures "
            f"rounded to hundredths; {parallel:.2f} is {verdict} of that, by at most half a hundredth of its own."
        )
    notes.append("64 GPUs are more efficient than 48: not monotone; 48 is no power of two, which trees do not like.")
    return Table(
        name="aachen-pop",
        title="POP efficiencies of ResNet-50 on CLAIX",
        source="ResNet-50 on CLAIX, Aachen, 2021",
        unit="efficiency",
        rows=rows,
        notes=notes,
    )
