"""Steps told by backward count where there are no others, on all ranks of a run alike."""

from pathlib import Path

from tests.tables import START_NS, Rows
from topout.schema.event import Kind
from topout.schema.run_folder import RunFolder
from topout.trace.readers.topout import read_run
from topout.trace.told_steps import has_steps_by_backward


def _write(folder: Path, rank: int, rows: Rows) -> RunFolder:
    run = RunFolder(folder)
    run.events(rank).write_bytes(b"".join(rows.blocks({"host": "n01"})))
    return run


def _told(num_steps: int = 3) -> Rows:
    rows = Rows()
    for step in range(num_steps):
        rows.add(Kind.DEVICE, START_NS + 100 * step, 90, name="backward", ref=step)
        rows.add(Kind.STEP, START_NS + 100 * step, 100, name="backward", ref=step)
    return rows


def test_they_count_where_there_are_no_others(tmp_path: Path) -> None:
    (table,) = read_run(_write(tmp_path, 0, _told()))
    assert has_steps_by_backward(table)
    assert table.ref[table.rows(Kind.STEP)].tolist() == [0, 1, 2]


def test_the_first_optimizer_step_takes_their_place_and_their_numbers(tmp_path: Path) -> None:
    rows = _told()
    for step, start in enumerate((0, 320, 420)):
        rows.add(Kind.STEP, START_NS + start, 320 if step == 0 else 100, ref=step)
        rows.add(Kind.DEVICE, START_NS + start + 20, 50, name="backward", ref=step)
    (table,) = read_run(_write(tmp_path, 0, rows))
    assert not has_steps_by_backward(table)
    assert (table.start_ns[table.rows(Kind.STEP)] - START_NS).tolist() == [0, 320, 420]
    # what the device did in the steps that were none does not count for those of the same numbers
    device = table.rows(Kind.DEVICE)
    assert list(zip(table.ref[device].tolist(), (table.start_ns[device] - START_NS).tolist(), strict=True)) == [
        (1, 340),
        (2, 440),
    ]


def test_all_ranks_of_a_run_tell_steps_in_the_same_way(tmp_path: Path) -> None:
    rows = Rows()
    rows.add(Kind.STEP, START_NS, 300, ref=0)
    _write(tmp_path, 0, rows)
    tables = read_run(_write(tmp_path, 1, _told()))
    assert [len(table.rows(Kind.STEP)) for table in tables] == [1, 0]
