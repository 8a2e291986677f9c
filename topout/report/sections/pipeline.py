"""A pipeline's stages side by side: what each computed, how long it stood, and what the schedule explains of that.

Nothing for a run without a pipeline; waiting for tensor-parallel peers stands among the phases.
"""

from topout.report import figures, svg
from topout.report.escape import text
from topout.report.sections.frame import obtained, section
from topout.report.sections.phases import colour_class
from topout.schema.measures import Measures, Pipeline, StageTime

MOST_STAGES = 32
"""Rows; deeper pipelines show the first of them."""


def pipeline(measures: Measures) -> str:
    found = measures.pipeline
    if found is None:
        return ""
    rows = "".join(_row(own) for own in found.stages[:MOST_STAGES])
    head = "".join(
        f'<th scope="col"{" class=number" if is_number else ""}>{name}</th>'
        for name, is_number in (("stage", False), ("ranks", False), ("computes", True), ("bubble", True), ("", False))
    )
    left_out = len(found.stages) - MOST_STAGES
    more = f"<p>and {left_out} more</p>" if left_out > 0 else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}"
    note = (
        "The formula holds for stages of equal work and messages that take no time; what is measured beyond it comes "
        f"from uneven stages, from messages, or from a rank that came late. {obtained('measured')}"
    )
    return section("pipeline", "Pipeline", note, f"<p>{_sentence(found)}</p>{table}")


def _sentence(found: Pipeline) -> str:
    told = (
        f"{text(found.schedule)}: {found.num_stages} stages, {found.stages_per_rank} on each rank, "
        f"{found.num_microbatches} micro-batches. Of the schedule’s time {figures.share(found.schedule_bubble_share)} "
        "is bubble"
    )
    told += f", by its formula {figures.share(found.formula_share)}." if found.formula_share is not None else "."
    if found.better_microbatches is not None:
        told += f" With {found.better_microbatches} micro-batches it would be {figures.share(found.better_share)}."
    return f"{told} The slowest stage computes {found.imbalance:.2f} times the mean."


def _row(own: StageTime) -> str:
    bar = svg.bar(
        svg.stacked([(colour_class("backward"), own.compute_share), (colour_class("bubble"), own.bubble_share)]),
        height=16,
    )
    return (
        f"<tr><td>{', '.join(map(str, own.stages))}</td><td>{text(figures.ranks(own.ranks))}</td>"
        f'<td class="number">{figures.share(own.compute_share)}</td>'
        f'<td class="number">{figures.share(own.bubble_share)}</td><td>{bar}</td></tr>'
    )
