"""The stretches that the script named itself with `topout.span`, added up by name."""

from typing import TYPE_CHECKING

from topout.report import figures
from topout.report.escape import text
from topout.report.sections.frame import obtained, section

if TYPE_CHECKING:
    from topout.analyze.series import Series, UserSpan

MOST_NAMES = 40


def spans(series: "Series") -> str:
    by_name: dict[str, list[UserSpan]] = {}
    for span in series.spans:
        by_name.setdefault(span.name, []).append(span)
    if not by_name:
        return ""
    longest_first = sorted(by_name.items(), key=lambda item: -sum(span.duration_ns for span in item[1]))
    rows = "".join(_row(name, found) for name, found in longest_first[:MOST_NAMES])
    titles = ("times", "ranks", "mean", "longest", "total over ranks")
    head = '<th scope="col">name</th>' + "".join(f'<th scope="col" class="number">{title}</th>' for title in titles)
    table = f'<table class="spans"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    left_out = len(by_name) - MOST_NAMES
    caption = f'<p class="caption">{left_out} shorter names are left out.</p>' if left_out > 0 else ""
    note = f"Stretches the script named with <code>topout.span</code>. {obtained('measured')}"
    return section("spans", "Named spans", note, table + caption)


def _row(name: str, found: "list[UserSpan]") -> str:
    total_ns = sum(span.duration_ns for span in found)
    cells = (
        f"{len(found):,}",
        f"{len({span.rank for span in found}):,}",
        figures.duration(total_ns / len(found)),
        figures.duration(max(span.duration_ns for span in found)),
        figures.duration(total_ns),
    )
    numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
    return f'<tr><th scope="row"><code>{text(name)}</code></th>{numbers}</tr>'
