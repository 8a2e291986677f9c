"""Spans and counts of the script: added up by name, over ranks, as one would by hand."""

from pathlib import Path

import pytest

from tests.tables import START_NS, Rows
from topout.analyze.marks import HELD_BYTES, NamedSpans
from topout.analyze.measure import measure_run
from topout.analyze.series import load_series
from topout.recommend.explain import explain_run
from topout.report.html import render as page
from topout.report.text import render as lines
from topout.schema.event import Flag, Kind
from topout.schema.measures import Count
from topout.schema.run_folder import RUN_VERSION, RunFolder

SECOND = 1_000_000_000


def stepping(num_steps: int = 4) -> Rows:
    """Steps of half a second."""
    rows = Rows()
    for step in range(num_steps):
        rows.add(Kind.STEP, START_NS + step * SECOND // 2, SECOND // 2, ref=step)
    return rows


def written(path: Path, *ranks: Rows) -> RunFolder:
    folder = RunFolder(path)
    path.mkdir()
    folder.run_json.write_text(f'{{"version": {RUN_VERSION}, "status": "finished"}}')
    for rank, rows in enumerate(ranks):
        folder.events(rank).write_bytes(b"".join(rows.blocks({"host": "n01"})))
    return folder


def test_spans_are_added_up_by_name_whatever_thread_they_are_of(tmp_path: Path) -> None:
    first, second = stepping(), stepping()
    first.add(Kind.SPAN, START_NS - 5, 30, name="augment")
    first.add(Kind.SPAN, START_NS + 9, 50, name="tokenise", flags=Flag.OFF_MAIN_THREAD)
    first.add(Kind.SPAN, START_NS + 120, 40, name="augment")
    second.add(Kind.SPAN, START_NS + 7, 20, name="augment")
    series = load_series(written(tmp_path / "run", first, second))
    assert series is not None
    assert series.spans == [
        NamedSpans(name="augment", num_spans=3, num_ranks=2, total_ns=90, longest_ns=40),
        NamedSpans(name="tokenise", num_spans=1, num_ranks=1, total_ns=50, longest_ns=50),
    ]


def test_counts_have_a_total_of_the_run_and_a_rate_of_the_window(tmp_path: Path) -> None:
    ranks = [stepping(), stepping()]
    for rank, rows in enumerate(ranks):
        rows.add(Kind.COUNT, START_NS - 1, name="tokens", value=1000)
        for step in range(4):
            rows.add(Kind.COUNT, START_NS + step * SECOND // 2 + 1, name="tokens", value=100 + rank)
    ranks[1].add(Kind.COUNT, START_NS + 5, name="misses", value=3, flags=Flag.OFF_MAIN_THREAD)
    measures, _ = measure_run(written(tmp_path / "run", *ranks))
    assert measures.window is not None and measures.window.num_warmup_steps == 1
    elapsed_s = measures.window.elapsed_ns / SECOND
    inside = measures.window.num_steps * (100 + 101)
    assert measures.counts == (
        Count(name="tokens", total=2 * 1000 + 4 * 201, window_total=inside, per_s=inside / elapsed_s),
        Count(name="misses", total=3, window_total=0, per_s=0.0),
    )


def test_what_a_last_evaluation_counts_is_of_the_window_and_what_follows_the_last_step_otherwise_is_not(
    tmp_path: Path,
) -> None:
    rows, end_ns = stepping(), START_NS + 2 * SECOND
    for step in range(1, 5):  # after the optimizer, so that the last one lies behind all steps
        rows.add(Kind.COUNT, START_NS + step * SECOND // 2 + 1, name="tokens", value=100)
    rows.add(Kind.EVALUATION, end_ns + 10, SECOND)
    rows.add(Kind.COUNT, end_ns + 20, name="evaluated", value=70)
    measures, _ = measure_run(written(tmp_path / "run", rows))
    assert measures.window is not None and measures.window.elapsed_ns > SECOND * measures.window.num_steps // 2 + SECOND
    counted = {count.name: count.window_total for count in measures.counts}
    assert counted == {"tokens": 100 * measures.window.num_steps, "evaluated": 70}


def test_a_count_with_which_a_last_evaluation_ends_is_of_the_window(tmp_path: Path) -> None:
    """As the script's last act, after a loop over batches that no backward follows."""
    rows, at_ns = stepping(), START_NS + 2 * SECOND + 10
    for number in range(4):
        rows.add(Kind.INPUT, at_ns + number * SECOND // 5, SECOND // 10, ref=9, value=1)
    rows.add(Kind.COUNT, at_ns + SECOND, name="evaluated", value=40)
    measures, _ = measure_run(written(tmp_path / "run", rows))
    assert [count.window_total for count in measures.counts] == [40]


def test_without_steps_there_are_totals_and_no_rates(tmp_path: Path) -> None:
    rows = Rows()
    rows.add(Kind.COUNT, START_NS, name="files", value=7)
    measures, _ = measure_run(written(tmp_path / "run", rows))
    assert measures.counts == (Count(name="files", total=7),)


def test_what_ranks_of_a_mesh_hold_is_not_a_count(tmp_path: Path) -> None:
    memory = pytest.importorskip("topout.train.mesh.memory")
    assert {f"memory.{name}_bytes" for name in memory.COLUMNS} == HELD_BYTES
    rows = stepping()
    for name in sorted(HELD_BYTES):
        rows.add(Kind.COUNT, START_NS + SECOND, name=name, value=1 << 30)
    rows.add(Kind.COUNT, START_NS + SECOND, name="memory.misses", value=1)
    measures, _ = measure_run(written(tmp_path / "run", rows))
    assert [count.name for count in measures.counts] == ["memory.misses"]


def test_both_pages_show_what_was_counted_and_nothing_where_nothing_was(tmp_path: Path) -> None:
    rows = stepping()
    for name in ("<b>tokens", "hits", "misses", "skips"):
        rows.add(Kind.COUNT, START_NS + SECOND, name=name, value=3000)
    folder = written(tmp_path / "run", rows)
    analysis = explain_run(folder)
    html = page(analysis, load_series(folder), {})
    assert 'id="counts"' in html and "<b>tokens" not in html
    # 3000 in a window of three steps, 1.5 s
    assert '<td class="number">3,000</td><td class="number">3,000</td><td class="number">2,000</td>' in html
    shown = [line for line in lines(analysis, width=110, color=False).splitlines() if line.startswith("Counted")]
    assert shown == ["Counted <b>tokens 3,000 (2,000/s) · hits 3,000 (2,000/s) · misses 3,000 (2,000/s) and 1 more"]
    bare = written(tmp_path / "bare", stepping())
    assert 'id="counts"' not in page(explain_run(bare), load_series(bare), {})
    assert "Counted" not in lines(explain_run(bare), width=110, color=False)
