"""The page's section on pipelines: figures that a reader compares, and nothing where there is no pipeline."""

from topout.report.sections.pipeline import pipeline
from topout.schema.measures import Measures, Pipeline, StageTime

FOUND = Pipeline(
    schedule="Schedule<b>",
    num_stages=2,
    num_microbatches=2,
    compute_share=0.6,
    bubble_share=0.3,
    schedule_bubble_share=0.34,
    formula_share=1 / 3,
    imbalance=1.25,
    slowest_stage=1,
    slowest_rank=1,
    stages=(
        StageTime(stages=(0,), ranks=(0, 2), compute_share=0.5, bubble_share=0.42),
        StageTime(stages=(1,), ranks=(1, 3), compute_share=0.7, bubble_share=0.18),
    ),
    better_microbatches=8,
    better_share=1 / 9,
)


def test_measured_bubble_and_formula_stand_side_by_side_and_names_are_escaped():
    page = pipeline(Measures(pipeline=FOUND)).replace("\u202f", " ")
    assert "34 % is bubble, by its formula 33 %. With 8 micro-batches it would be 11 %." in page
    assert "1.25 times the mean" in page
    assert page.count("<tr><td>") == 2
    assert "42 %" in page
    assert "Schedule<b>" not in page


def test_a_run_without_a_pipeline_has_no_such_section():
    assert pipeline(Measures()) == ""
