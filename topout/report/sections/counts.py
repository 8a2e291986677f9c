"""The quantities that the script counted with `topout.count`: how many, and how many a second."""

from topout.report import figures
from topout.report.escape import text
from topout.report.sections.frame import obtained, section
from topout.schema.measures import Count, Measures

MOST_NAMES = 40


def counts(measures: Measures) -> str:
    found = measures.counts
    if not found:
        return ""
    rows = "".join(map(_row, found[:MOST_NAMES]))
    titles = ("total", "in the measured steps", "a second")
    head = '<th scope="col">name</th>' + "".join(f'<th scope="col" class="number">{title}</th>' for title in titles)
    table = f'<table class="spans"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    left_out = len(found) - MOST_NAMES
    caption = f'<p class="caption">{left_out:,} more names are in analysis.json.</p>' if left_out > 0 else ""
    note = (
        "What the script counted with <code>topout.count</code>, added up over ranks; the rate is that of the measured "
        f"steps. {obtained('measured')}"
    )
    return section("counts", "Counts", note, table + caption)


def _row(found: Count) -> str:
    window_total = figures.NOT_MEASURED if found.window_total is None else f"{found.window_total:,}"
    cells = (f"{found.total:,}", window_total, figures.amount(found.per_s))
    numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
    return f'<tr><th scope="row"><code>{text(found.name)}</code></th>{numbers}</tr>'
