"""What a rank wrote about its noise scale comes out of the run folder, whole rows only."""

import numpy as np
import pytest

from tests.tables import Plan, StepPlan, build_run
from topout.analyze.measure import measure_run
from topout.analyze.noise_scale import MOST_POINTS, measure_noise_scale
from topout.analyze.series import load_series
from topout.trace.readers.topout import read_run

NAMES = ("step", "thousandths", "low_thousandths", "high_thousandths", "drifted", "num_samples", "batch")


def counters(rows):
    columns = zip(*rows, strict=True)
    return {
        f"noise_scale_{name}": [(index + 1, value) for index, value in enumerate(column)]
        for name, column in zip(NAMES, columns, strict=True)
    }


def run_with(tmp_path, rows, num_ranks=2):
    steps = [StepPlan(forward=10, backward=20, optimizer=5)] * 12
    return build_run(tmp_path, [steps] * num_ranks, Plan(counters=counters(rows) if rows else {})).folder


def test_the_last_row_is_the_value_and_all_are_the_way_there(tmp_path):
    folder = run_with(tmp_path, [(9, 80_000, 50_000, -1, 0, 8, 128), (19, 210_500, 150_000, 300_000, 1, 9, 128)])
    found = measure_run(folder)[0].noise_scale
    assert (found.value, found.low, found.high) == (210.5, 150.0, 300.0)
    assert (found.has_drifted, found.num_samples, found.batch_size) == (True, 9, 128)
    assert (found.steps, found.values) == ((9, 19), (80.0, 210.5))
    assert (found.lows, found.highs) == ((50.0, 150.0), (None, 300.0))


def test_a_value_without_an_upper_limit_is_none_not_a_number(tmp_path):
    found = measure_run(run_with(tmp_path, [(9, -1, 50_000, -1, 0, 8, 128)]))[0].noise_scale
    assert (found.value, found.low, found.high) == (None, 50.0, None)


def test_a_run_that_did_not_look_has_none(tmp_path):
    assert measure_run(run_with(tmp_path, []))[0].noise_scale is None


def test_a_row_that_was_cut_is_left_out(tmp_path):
    folder = run_with(tmp_path, [(9, 80_000, 50_000, -1, 0, 8, 128), (19, 210_000, 150_000, 300_000, 0, 9, 128)])
    tables = read_run(folder)
    batch = tables[0].counters["noise_scale_batch"]
    object.__setattr__(batch, "values", batch.values[:1])
    assert measure_noise_scale(tables).value == 80.0


def test_a_long_run_is_thinned_to_its_ends_and_between(tmp_path):
    rows = [(10 * n, 1000 * (n + 1), 0, 10_000_000, 0, 50, 64) for n in range(1000)]
    found = measure_run(run_with(tmp_path, rows, num_ranks=1))[0].noise_scale
    assert len(found.steps) == MOST_POINTS
    assert (found.steps[0], found.steps[-1]) == (0, 9990)
    assert np.all(np.diff(found.steps) > 0)


def test_the_page_and_the_terminal_say_it_with_its_caution(tmp_path):
    from dataclasses import replace

    from tests.report.analyses import LATE_RANK
    from topout.report.html import render as page
    from topout.report.text import render as terminal

    rows = [(9, 80_000, 0, -1, 0, 8, 128), (19, 213_000, 152_000, 308_000, 0, 9, 128)]
    folder = run_with(tmp_path, rows)
    measures = replace(LATE_RANK.measures, noise_scale=measure_run(folder)[0].noise_scale)
    analysis = replace(LATE_RANK, measures=measures)
    said = terminal(analysis, width=100, color=False)
    assert "Gradient noise scale 210 (150 to 310); this run's batch is 128" in said
    assert "3 to 5 times larger" in said
    html = page(analysis, load_series(folder), {})
    assert '<section id="noise-scale"' in html and "210 (150 to 310)" in html
    assert "noise_scale_" not in html  # not among the counters as well
    assert "noise-scale" not in page(LATE_RANK, None, {})


@pytest.mark.parametrize(("drifted", "high", "words"), [(1, 300_000, "moving"), (0, -1, "above 150, no upper limit")])
def test_what_makes_a_single_figure_doubtful_is_said(tmp_path, drifted, high, words):
    from topout.report.noise_sentence import noise_sentence

    found = measure_run(run_with(tmp_path, [(19, 210_000, 150_000, high, drifted, 9, 128)]))[0].noise_scale
    assert words in noise_sentence(found)
