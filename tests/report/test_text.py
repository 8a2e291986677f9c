"""The page in the terminal: verdict first, short, and the same without colour."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.report.analyses import LATE_RANK, MEASURES, NOTHING_SEEN
from topout.recommend.engine import RULES, find
from topout.report.sentences import verdict_sentence
from topout.report.text import duration_text, render
from topout.schema.measures import Communication, Measures, Memory, Verdict
from topout.schema.plugin import load_plugin, plugin_names

REPORT = Path("topout-runs/2026-11-15-train-1/report.html")


def plain(analysis, width=100, report=REPORT):
    return render(analysis, width=width, color=False, report=report)


def test_the_verdict_comes_first_with_its_share_evidence_and_who():
    lines = plain(LATE_RANK).splitlines()
    assert lines[2] == "LOAD-IMBALANCE  25 % of the time   runner-up: input-decode, 12 %"
    assert lines[3:6] == [
        "  Ranks wait for a late one 25 % of the time.",
        "  Rank 2 on n01 arrives last in 97 % of steps.",
        "  phase backward · rank 2 · host n01",
    ]


def test_the_page_is_short():
    assert len(plain(LATE_RANK).splitlines()) <= 38


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_line_is_wider_than_the_terminal_but_formulas(width):
    wide = [line for line in plain(LATE_RANK, width).splitlines() if len(line) > width]
    assert [line for line in wide if " × " not in line] == []


@pytest.mark.parametrize("width", range(40, 140, 3))
def test_a_share_stands_on_one_line(width):
    assert [line for line in plain(LATE_RANK, width).splitlines() if line.lstrip().startswith("%")] == []


def test_colour_adds_nothing_but_colour():
    painted = render(LATE_RANK, width=100, color=True, report=REPORT)
    assert "\033[" in painted
    assert re.sub(r"\033\[[\d;]*m", "", painted) == plain(LATE_RANK)
    assert "\033" not in plain(LATE_RANK)


def test_bars_are_in_proportion():
    lengths = {
        line.split()[0]: line.count("█")
        for line in plain(LATE_RANK).splitlines()
        if re.match(r"  (backward|wait|input|other) ", line)
    }
    assert lengths == {"backward": 48, "wait": 36, "input": 17}  # 48 * 25 / 33, 48 * 12 / 33; 1 % is left out


def test_factors_below_the_limit_are_marked():
    page = plain(LATE_RANK)
    assert "parallel 0.62 ! = load balance 0.65 ! × communication 0.95 (serialisation 0.99 × transfer 0.96)" in page
    assert "overall 0.55 ! = parallel 0.62 ! × work 0.88" in page


def test_findings_show_gain_code_and_what_to_do():
    page = plain(LATE_RANK)
    assert "   25 %  LB01  One rank holds the others up" in page
    assert "Look at backward of rank 2 on n01" in page
    assert page.index("LB01") < page.index("IN01")


def test_the_last_line_is_the_next_command():
    assert plain(LATE_RANK).splitlines()[-2:] == [f"Report  {REPORT}", "Next    topout explain LB01"]


def test_step_time_and_rate_are_shown():
    assert "Step 52.1 ms (median; mostly 50 ms to 61 ms) · 1,228 samples/s · steps 12 to 211" in plain(LATE_RANK)


def test_a_run_without_a_verdict_says_why():
    page = plain(NOTHING_SEEN, report=None)
    assert "NO VERDICT\n  No optimizer step was seen.\n" in page
    assert page.count("No optimizer step was seen.") == 1
    assert "failed with exit code 7" in page
    assert "Where the time goes" not in page
    assert "Report" not in page


def test_computing_that_may_be_something_else_is_given_as_at_most():
    shares = {"forward": 0.8, "backward": 0.1, "optimizer": 0.05, "other": 0.05}
    verdict = Verdict(name="compute", share=0.95)
    page = plain(replace(LATE_RANK, verdict=verdict, measures=Measures(shares=shares)))
    assert "COMPUTE  up to 95 % of the time" in page
    usual = {"forward": 0.3, "backward": 0.6, "optimizer": 0.05, "other": 0.05}
    page = plain(replace(LATE_RANK, verdict=verdict, measures=Measures(shares=usual)))
    assert "COMPUTE  95 % of the time" in page
    hidden = Measures(shares=usual, communication=Communication(is_hidden=True))
    page = plain(replace(LATE_RANK, verdict=verdict, measures=hidden))
    assert "COMPUTE  up to 95 % of the time" in page
    assert "communication that could not be told apart included" in verdict_sentence(verdict, hidden)


def test_a_single_rank_has_no_parallel_efficiency_to_show():
    alone = replace(LATE_RANK, measures=replace(MEASURES, ranks=MEASURES.ranks[:1]))
    assert "Efficiencies" not in plain(alone)


def test_many_ranks_do_not_flood_the_page():
    assert LATE_RANK.verdict is not None
    many = replace(LATE_RANK.verdict, ranks=tuple(range(512)), hosts=tuple(f"n{i}" for i in range(128)))
    page = plain(replace(LATE_RANK, verdict=many))
    assert "ranks 0–511 · hosts n0, n1, n2, n3, n4, n5 and 122 more" in page


def test_out_of_memory_is_the_first_thing_to_mend():
    measures = Measures(memory=Memory(is_out_of_memory=True, requested_bytes=2**31))
    verdict = Verdict(name="memory-size", share=1.0)
    page = plain(replace(LATE_RANK, status="failed", verdict=verdict, findings=find(measures), measures=measures))
    assert "MEMORY-SIZE" in page
    assert "An allocation of 2 GiB failed." in page
    assert page.endswith("Next    topout explain ME02\n")


@settings(deadline=None)
@given(st.sampled_from([load_plugin(RULES, name).RULE for name in plugin_names(RULES)]), st.integers(1, 200))
def test_every_finding_can_be_rendered_at_any_width(rule, width):
    analysis = replace(LATE_RANK, findings=find(rule.fires_on), measures=rule.fires_on)
    assert f"{rule.code}  {rule.title}"[:20] in plain(analysis, width)


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (940_000, "940 µs"),
        (52_100_000, "52.1 ms"),
        (1.25e9, "1.25 s"),
        (5e12, "5,000 s"),
        (999.6, "1 µs"),
        (999.6e3, "1 ms"),
        (999.4e6, "999 ms"),
        (999.6e6, "1 s"),
        (999.6e9, "1,000 s"),
        (-999.6e6, "-1 s"),
        (-5e12, "-5,000 s"),
    ],
)
def test_durations_have_the_unit_that_fits(duration_ns, text):
    assert duration_text(duration_ns) == text
