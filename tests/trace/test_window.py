"""The common window: steps of all ranks, warm-up left out."""

from pathlib import Path

import numpy as np
import pytest

from tests.tables import START_NS, Rows
from topout.schema.event import Kind
from topout.schema.run_folder import RunFolder
from topout.trace.readers.topout import read_run
from topout.trace.window import common_steps, num_warmup_steps


@pytest.mark.parametrize(
    ("training_ms", "expected"),
    [
        ([], 0),
        ([500], 0),
        ([500, 10], 1),
        ([10, 10, 10, 10], 1),
        ([900, 400, 20, 10, 11, 9, 10, 10], 3),
        ([900, 10, 11, 300, 10, 10, 11, 10], 1),
        ([90, 80, 70, 60, 50, 10, 10, 10, 10, 10], 5),
        ([90, 80, 70, 60, 50, 40, 10, 10, 10, 10], 5),
    ],
)
def test_leading_long_steps_are_warmup(training_ms: list[int], expected: int) -> None:
    assert num_warmup_steps(np.array(training_ms, dtype=np.int64)) == expected


def _write(folder: RunFolder, rank: int, steps: list[tuple[int, int, int]]) -> None:
    rows = Rows()
    for number, start, duration in steps:
        rows.add(Kind.STEP, START_NS + start, duration, ref=number)
    folder.events(rank).write_bytes(b"".join(rows.blocks({"host": "n01"})))


def test_only_steps_of_all_ranks_count(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    _write(folder, 0, [(0, 0, 10), (1, 10, 10), (2, 20, 10), (3, 30, 10)])
    _write(folder, 1, [(1, 12, 10), (2, 22, 10)])
    numbers, edges = common_steps(read_run(folder))
    assert numbers.tolist() == [1, 2]
    assert (edges - START_NS).tolist() == [[10, 20, 30], [12, 22, 32]]


def test_a_gap_leaves_the_longest_stretch(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    _write(folder, 0, [(0, 0, 10), (1, 10, 10), (4, 40, 10), (5, 50, 10), (6, 60, 10)])
    numbers, edges = common_steps(read_run(folder))
    assert numbers.tolist() == [4, 5, 6]
    assert (edges - START_NS).tolist() == [[40, 50, 60, 70]]


def test_no_ranks_no_steps() -> None:
    numbers, _ = common_steps([])
    assert len(numbers) == 0
