"""The formulas of pipeline bubbles, against values that can be counted on a diagram."""

import pytest

from topout.schema.pipeline import bubble_share, enough_microbatches


@pytest.mark.parametrize(
    ("schedule", "ranks", "microbatches", "chunks", "share"),
    [
        ("gpipe", 2, 2, 1, 1 / 3),
        ("ScheduleGPipe", 4, 4, 1, 3 / 7),
        ("1F1B", 8, 16, 1, 7 / 23),
        ("Interleaved1F1B", 4, 4, 2, 3 / 11),
        ("LoopedBFS", 2, 8, 2, 1 / 17),
        ("ScheduleInterleavedZeroBubble", 2, 4, 2, 1 / 25),
        ("ZBVZeroBubble", 4, 8, 2, 3 / 51),
        ("gpipe", 1, 4, 1, 0.0),
    ],
)
def test_the_share_is_that_of_the_diagram(schedule, ranks, microbatches, chunks, share):
    assert bubble_share(schedule, ranks, microbatches, chunks) == pytest.approx(share, abs=1e-12)


def test_a_schedule_nobody_knows_has_no_formula():
    assert bubble_share("MyOwn", 4, 8) is None
    assert bubble_share("gpipe", 4, 0) is None
    assert bubble_share("ZBVZeroBubble", 4, 4, 2) is None, "a V needs two micro-batches a rank"


def test_enough_micro_batches_are_four_a_rank_and_always_more_than_there_are():
    assert enough_microbatches(2, 2) == 8
    assert enough_microbatches(8, 2) == 32
    assert enough_microbatches(4, 32) == 64
