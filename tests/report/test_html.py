"""What the page must hold, seen as text; `test_html_browser.py` looks at it with a browser."""

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from tests.report.sample import HOSTILE, MS, make_analysis, make_run, make_series
from tests.tables import StepPlan, build_run
from topout.analyze.series import Series
from topout.report import figures, html
from topout.report.figures import is_low
from topout.report.sections.counters import PANELS
from topout.report.sections.efficiency import efficiency
from topout.report.sections.opening import key_figures
from topout.report.sections.timeline import MOST_CELLS, pack
from topout.report.sentences import verdict_sentence
from topout.schema.analysis import Analysis
from topout.schema.event import CUMULATIVE_COUNTERS
from topout.schema.measures import PHASES, VERDICTS, Device, Measures, Verdict
from topout.schema.run_folder import RunFolder

ORDER = (
    "verdict",
    "time",
    "waterfall",
    "efficiency",
    "findings",
    "timeline",
    "steps",
    "spans",
    "counters",
    "environment",
)


class Outline(HTMLParser):
    """Elements and text of a page, as a browser would see them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "rect", "path", "br", "img"):
            self.open.append(tag)
        if (key := dict(attrs).get("id")) is not None:
            self.ids.append(key)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("rect", "path"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def two_steps() -> Series:
    """One rank: a step of 10 ms (4 input, 6 forward), then one of 20 ms (20 backward)."""
    phase_ns = np.zeros((1, 2, len(PHASES)), dtype=np.int64)
    phase_ns[0, 0, PHASES.index("input")] = 4 * MS
    phase_ns[0, 0, PHASES.index("forward")] = 6 * MS
    phase_ns[0, 1, PHASES.index("backward")] = 20 * MS
    return Series(
        ranks=[0],
        hosts=["n01"],
        steps=np.array([5, 6]),
        duration_ns=phase_ns.sum(axis=2),
        phase_ns=phase_ns,
        start_ns=np.array([[0, 10 * MS]]),
        tail_ns=np.zeros(1, dtype=np.int64),
        counters=[{}],
        spans=[],
    )


@pytest.fixture(scope="module")
def usual() -> str:
    series = make_series(2, 500)
    return html.render(make_analysis(series), series, make_run(series))


def test_the_verdict_comes_first_and_the_rest_in_order(usual: str):
    found = [key for key in Outline(usual).ids if key in ORDER]
    assert tuple(found) == ORDER


def test_every_element_is_closed(usual: str):
    assert Outline(usual).open == []


def test_a_usual_run_stays_under_300_kb_and_the_page_without_data_under_100_kb(usual: str):
    series = make_series(2, 500)
    assert len(usual.encode()) < 300_000
    assert len(html.render(make_analysis(series), None, make_run(series)).encode()) < 100_000


def test_the_page_refers_to_nothing_outside_itself(usual: str):
    outline = Outline(usual)
    outside = [value for _, attrs in outline.tags for name, value in attrs.items() if name in ("src", "href", "data")]
    assert outside == ["data:,"]
    assert "http://" not in usual and "https://" not in usual and "url(" not in usual and "@import" not in usual


def test_hostile_names_stay_text():
    series = replace(make_series(2, 20, span_name=HOSTILE), hosts=[HOSTILE, HOSTILE])
    analysis = make_analysis(series, script=HOSTILE)
    hostile_finding = replace(analysis.findings[0], title=HOSTILE, because=HOSTILE, advise=f"`{HOSTILE}`", code=HOSTILE)
    verdict = replace(analysis.verdict, evidence=(HOSTILE,), hosts=(HOSTILE,), phase=HOSTILE, name=HOSTILE)
    analysis = replace(analysis, findings=(hostile_finding,), verdict=verdict, status=HOSTILE)
    run = {**make_run(series), "notes": [HOSTILE], "command": HOSTILE, "versions": {HOSTILE: HOSTILE}}
    page = html.render(analysis, series, {**run, "first_failure": HOSTILE, "spec": {HOSTILE: HOSTILE}})
    outline = Outline(page)
    assert outline.open == []
    assert not any(tag == "img" for tag, _ in outline.tags)
    assert page.count("</script>") == 2  # the data and the code
    assert outline.text.count(HOSTILE) >= 12


def test_only_the_one_script_of_the_page_may_run(usual: str):
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', usual)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/]{43}='$", policy[1])


@pytest.mark.parametrize("name", VERDICTS)
def test_every_verdict_has_a_sentence_of_its_own(name: str):
    sentence = verdict_sentence(Verdict(name=name, share=0.43))
    assert not sentence.startswith(name)
    assert "43\u202f%" in sentence or name == "memory-size"


def test_a_single_late_rank_is_named():
    verdict = Verdict(name="load-imbalance", share=0.3, ranks=(3,))
    assert verdict_sentence(verdict) == "Rank 3 holds this job back: the others wait for it 30\u202f% of the time."


def test_computing_that_may_be_something_else_is_said_with_care():
    measures = Measures(shares={"forward": 0.9, "backward": 0.05})
    sentence = verdict_sentence(Verdict(name="compute", share=0.95), measures)
    assert sentence.startswith("Computation seems to set the pace: up to 95\u202f%")


def test_without_a_series_the_page_says_what_it_leaves_out():
    series = make_series(2, 20)
    outline = Outline(html.render(make_analysis(series), None, {}))
    assert "timeline" not in outline.ids
    assert "No single steps to show" in outline.text


def test_nothing_measured_still_gives_a_page():
    why = "No optimizer step was seen: call `topout.step()` once a step."
    empty = Analysis(
        run="r",
        script="s.py",
        status="failed",
        exit_code=7,
        duration_s=None,
        verdict=None,
        findings=(),
        measures=Measures(not_measured=(why,)),
    )
    text = Outline(html.render(empty, None, {"first_failure": "ValueError: no such <file>"})).text
    assert "The job failed before enough of it could be measured" in text
    assert "exit code 7" in text
    assert "topout.step()" in text
    assert "ValueError: no such <file>" in text


def test_a_factor_below_eighty_hundredths_is_marked():
    device = Device(
        parallel_efficiency=0.63,
        load_balance=0.9,
        communication_efficiency=0.875,
        orchestration_efficiency=0.8,
        compute_share=0.6,
        exposed_communication_share=0.1,
        exposed_copy_share=0.0,
        idle_share=0.3,
    )
    tree = efficiency(Measures(device=device))
    assert tree.count("below 0.80</span>") == 1
    assert "0.63" in tree and "0.88" in tree


def test_packing_keeps_edges_and_shares():
    packed = pack(two_steps()).data
    assert packed["phases"] == ["input", "forward", "backward"]
    assert packed["steps"] == [5, 6]
    edges = np.frombuffer(base64.b64decode(packed["edges"]), dtype="<u4") * packed["unit"]
    assert edges.tolist() == [0, 10 * MS, 30 * MS]
    shares = np.frombuffer(base64.b64decode(packed["shares"]), dtype="<u2").reshape(2, 3) / 65535
    assert shares == pytest.approx(np.array([[0.4, 0.6, 0.0], [0.0, 0.0, 1.0]]), abs=1e-5)


def test_a_window_longer_than_32_bits_of_nanoseconds_gets_a_larger_unit():
    series = two_steps()
    hours = replace(series, duration_ns=series.duration_ns * 10**6, start_ns=series.start_ns * 10**6)
    packed = pack(hours).data
    edges = np.frombuffer(base64.b64decode(packed["edges"]), dtype="<u4").astype(np.int64) * packed["unit"]
    assert abs(edges - np.array([0, 10**13, 3 * 10**13])).max() <= packed["unit"]


def test_steps_are_merged_above_the_limit_and_the_page_says_so():
    series = make_series(8, 2 * MOST_CELLS // 8)
    packed = pack(series)
    assert packed.merged_steps == 2
    assert len(packed.data["steps"]) == MOST_CELLS // 8
    page = Outline(html.render(make_analysis(series), series, {})).text
    assert "here 2 steps a cell" in page


def test_ranks_that_the_verdict_names_are_never_left_out():
    series = make_series(600, 2)
    packed = pack(series, (7, 501))
    assert packed.num_ranks_shown <= 256
    assert {0, 7, 501, 599} <= set(packed.data["ranks"])


def test_a_last_evaluation_is_no_part_of_the_last_step():
    series = replace(two_steps(), tail_ns=np.array([8 * MS]))
    page = html.render(make_analysis(make_series(1, 2)), series, {})
    assert "Step times from 10.0\u202fms to 12.0\u202fms" in page


def test_counters_are_named_scaled_and_drawn_once_a_host(usual: str):
    text = Outline(usual).text
    assert "CPU, rank 0.9" in text
    assert "At zero throughout: Written to storage" in text
    network = usual[usual.index("Network of host, received") :]
    assert network[: network.index("</figure>")].count('class="line') == 1


def test_every_counter_of_topouts_own_has_a_title_and_a_unit():
    shown = [name for name in CUMULATIVE_COUNTERS if not name.startswith("input_samples_")]
    assert [name for name in shown if name not in PANELS] == []


def test_what_a_loader_counts_is_shown_a_second_and_its_waiting_as_a_share():
    times_s = np.arange(4.0)
    rates = {"feed_samples": 3861.0, "feed_bytes": 123e6, "feed_wait_ns": 0.95e9, "feed_queue_depth": 3.0}
    counters = [{name: (times_s, np.full(4, value)) for name, value in rates.items()}]
    text = Outline(html.render(make_analysis(make_series(1, 2)), replace(two_steps(), counters=counters), {})).text
    for title in (
        "Samples from the loader 3,861/s",
        "Bytes from the loader 117 MiB/s",
        "Waiting for the loader 95 %",
        "Batches ready in the loader 3",
    ):
        assert title in text
    assert "feed_" not in text


@pytest.mark.parametrize(
    ("ns", "written"),
    [
        (0, "0\u202fns"),
        (1_500, "1.50\u202fµs"),
        (12_345_678, "12.3\u202fms"),
        (2.5e9, "2.50\u202fs"),
        (125e9, "2\u202fmin 05\u202fs"),
        (None, "–"),
    ],
)
def test_durations_read_as_a_person_writes_them(ns: float | None, written: str):
    assert figures.duration(ns) == written


def test_a_small_share_is_not_rounded_to_nothing():
    assert [figures.share(value) for value in (0, 0.0001, 0.043, 0.43, None)] == [
        "0\u202f%",
        "<\u202f0.1\u202f%",
        "4.3\u202f%",
        "43\u202f%",
        "–",
    ]


def test_ranks_are_written_as_ranges():
    assert figures.ranks((12, 0, 1, 2)) == "ranks 0–2, 12"


def test_a_folder_whose_recording_is_unreadable_still_gets_its_report(tmp_path):
    folder = RunFolder(tmp_path)
    (tmp_path / "rank-00000.events").write_bytes(b"not a recording")
    folder.run_json.write_text("{ torn")
    path = html.write(make_analysis(make_series(1, 5)), folder)
    assert path == tmp_path / "report.html"
    assert "No single steps to show" in path.read_text()


def test_a_recorded_folder_gets_its_timeline_and_the_first_failure(tmp_path):
    step = StepPlan(input=4 * MS, forward=2 * MS, backward=3 * MS, optimizer=MS)
    folder = build_run(tmp_path / "run", [[step] * 30, [step] * 30]).folder
    folder.first_failure.write_text("RuntimeError: planted")
    outline = Outline(html.write(make_analysis(make_series(2, 8)), folder).read_text())
    assert "timeline-canvas" in outline.ids
    assert "RuntimeError: planted" in outline.text


def test_what_broke_while_reading_is_named(tmp_path, monkeypatch):
    def broken(folder: RunFolder) -> None:
        raise ValueError("block 3 is torn")

    monkeypatch.setattr("topout.analyze.series.load_series", broken)
    page = html.write(make_analysis(make_series(1, 5)), RunFolder(tmp_path)).read_text()
    assert "ValueError: block 3 is torn" in page


def test_a_single_rank_has_no_parallel_efficiency_among_its_key_figures():
    series = make_series(4, 3)
    analysis = make_analysis(series)
    assert "Parallel efficiency" in key_figures(analysis)
    alone = replace(analysis, measures=replace(analysis.measures, ranks=analysis.measures.ranks[:1]))
    assert "Parallel efficiency" not in key_figures(alone)


def test_what_reads_as_eighty_hundredths_is_not_marked():
    assert not is_low(0.796)
    assert is_low(0.794)
