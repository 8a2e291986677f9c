"""The stretches that the script named itself with `topout.span`, added up by name."""

from typing import TYPE_CHECKING

from topout.report import figures
from topout.report.escape import text
from topout.report.sections.frame import obtained, section

if TYPE_CHECKING:
    from topout.analyze.marks import NamedSpans
    from topout.analyze.series import Series

MOST_NAMES = 40


def spans(series: "Series") -> str:
    if not series.spans:
        return ""
    longest_first = sorted(series.spans, key=lambda found: -found.total_ns)
    rows = "".join(_row(found) for found in longest_first[:MOST_NAMES])
    titles = ("times", "ranks", "mean", "longest", "total over ranks")
    head = '<th scope="col">name</th>' + "".join(f'<th scope="col" class="number">{title}</th>' for title in titles)
    table = f'<table class="spans"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    left_out = len(series.spans) - MOST_NAMES
    caption = f'<p class="caption">{left_out} shorter names are left out.</p>' if left_out > 0 else ""
    note = f"Stretches the script named with <code>topout.span</code>. {obtained('measured')}"
    return section("spans", "Named spans", note, table + caption)


def _row(found: "NamedSpans") -> str:
    cells = (
        f"{found.num_spans:,}",
        f"{found.num_ranks:,}",
        figures.duration(found.total_ns / found.num_spans),
        figures.duration(found.longest_ns),
        figures.duration(found.total_ns),
    )
    numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
    return f'<tr><th scope="row"><code>{text(found.name)}</code></th>{numbers}</tr>'
