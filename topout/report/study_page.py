"""A page of a study: its answer in a sentence, then charts and the tables behind them.

Takes what `cli.study_pages` makes of a scaling study, a simulation, a plan or a ranking of devices; this room knows
none of them. Not the place for arithmetic.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from topout.report.axes import Chart, draw
from topout.report.escape import prose, text
from topout.report.sections.frame import obtained, section
from topout.report.shell import whole_page
from topout.report.stacks import Stacks, draw_stacks

SCRIPTS = ("page.js", "stops.js")


@dataclass(frozen=True, kw_only=True)
class Table:
    """Cells as they are printed; the first column names the row."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: int | None = None
    """The row that the text speaks of."""
    words: frozenset[int] = frozenset()
    """Columns of words, set from the left; all others are numbers."""
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A line to copy."""

    line: str
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Passage:
    """Sentences between charts; `backticks` mark code."""

    title: str = ""
    sentences: Sequence[str] = ()


Content = Chart | Stacks | Table | Command | Passage


@dataclass(frozen=True, kw_only=True)
class Section:
    key: str
    title: str
    note: str
    how: str
    """`measured`, `predicted` or `assumed`."""
    content: Sequence[Content]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a reader who reads nothing else should take along."""

    lead: str
    rest: str
    evidence: Sequence[str] = ()
    figures: Sequence[tuple[str, str, str]] = ()
    """Name, value, and what it means."""


@dataclass(frozen=True, kw_only=True)
class StudyPage:
    kind: str
    title: str
    facts: Sequence[str]
    answers: Sequence[Answer]
    sections: Sequence[Section]
    notes: Sequence[str] = ()
    origin: str = ""


def render(page: StudyPage) -> str:
    facts = "".join(f"<li>{text(fact)}</li>" for fact in page.facts if fact)
    parts = [_answer(answer, number) for number, answer in enumerate(page.answers)]
    parts += [
        section(
            text(part.key),
            text(part.title),
            f"{prose(part.note)} {obtained(part.how)}",
            "".join(map(_content, part.content)),
        )
        for part in page.sections
        if part.content
    ]
    if page.notes:
        items = "".join(f"<li>{prose(note)}</li>" for note in page.notes)
        parts.append(
            section("notes", "Notes", "What to know before relying on it.", f'<ul class="missing">{items}</ul>')
        )
    return whole_page(
        kind=page.kind,
        title=page.title,
        masthead=f'<h1>{text(page.title)}</h1><ul class="facts">{facts}</ul>',
        main="\n".join(parts),
        footer=_provenance(page),
        origin=page.origin or page.title,
        scripts=SCRIPTS,
    )


def _answer(answer: Answer, number: int) -> str:
    key = "verdict" if number == 0 else f"verdict-{number + 1}"
    evidence = "".join(f"<li>{prose(line)}</li>" for line in answer.evidence)
    cards = "".join(
        f"<div><dt>{text(name)}</dt><dd><b>{text(value)}</b><small>{prose(meaning)}</small></dd></div>"
        for name, value, meaning in answer.figures
    )
    return (
        f'<section id="{key}" class="answer" aria-label="Answer">'
        f'<p class="sentence"><strong>{text(answer.lead)}</strong>'
        f'{text(answer.rest)}</p><ul class="evidence">{evidence}</ul></section>'
        + (f'<dl class="figures">{cards}</dl>' if cards else "")
    )


def _content(content: Content) -> str:
    if isinstance(content, Chart):
        return draw(content)
    if isinstance(content, Stacks):
        return draw_stacks(content)
    if isinstance(content, Table):
        return _table(content)
    if isinstance(content, Command):
        caption = f'<p class="caption">{prose(content.caption)}</p>' if content.caption else ""
        return f'<pre class="command"><code>{text(content.line)}</code></pre>{caption}'
    title = f"<h3>{text(content.title)}</h3>" if content.title else ""
    return title + "".join(f'<p class="passage">{prose(sentence)}</p>' for sentence in content.sentences)


def _table(table: Table) -> str:
    def cell(tag: str, column: int, words: str) -> str:
        number = "" if column in table.words else ' class="number"'
        scope = ' scope="col"' if tag == "th" else ""
        return f"<{tag}{scope}{number}>{text(words)}</{tag}>"

    head = "".join(cell("th", column, words) for column, words in enumerate(table.head))
    body = ""
    for number, row in enumerate(table.rows):
        first = '<th scope="row"' + ("" if 0 in table.words else ' class="number"') + f">{text(row[0])}</th>"
        marked = ' class="marked"' if number == table.marked else ""
        body += f"<tr{marked}>{first}{''.join(cell('td', at, words) for at, words in enumerate(row) if at)}</tr>"
    caption = f'<p class="caption">{prose(table.caption)}</p>' if table.caption else ""
    return (
        f'<div class="scrolled" tabindex="0" role="region" aria-label="Table"><table class="study">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{caption}"
    )


_MEANING = {
    "measured": "From the clocks and counters of runs; ranges are 80 % intervals over runs.",
    "predicted": "Computed from measured or described numbers; ranges are 80 % intervals of what those allow.",
    "assumed": "From data sheets or other tables, not seen by topout.",
}


def _provenance(page: StudyPage) -> str:
    used = [how for how in _MEANING if any(part.how.endswith(how) or how in part.how for part in page.sections)]
    items = "".join(f"<dt>{obtained(how)}</dt><dd>{_MEANING[how]}</dd>" for how in used)
    return f'<dl class="provenance">{items}</dl>'
