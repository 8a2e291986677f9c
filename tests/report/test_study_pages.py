"""Pages of studies: the answer first, the figures of the text tables, and no name that becomes code."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.sample import HOSTILE
from tests.report.study_samples import bent_scaling, planned, scaled, simulated
from tests.report.test_html import Outline
from topout.cli.plan_page import plan_page
from topout.cli.scale_text import scale_text
from topout.cli.simulate_page import Simulation, shaded, simulate_page
from topout.report.axes import Axis, Chart, Line, Stop, draw
from topout.report.shell import asset
from topout.report.stacks import Column, Stacks, draw_stacks
from topout.report.study_page import StudyPage, render
from topout.study.scaling import _what_bends


def simulation(**changed: object) -> Simulation:
    points = [simulated(nodes) for nodes in (1, 4, 16)]
    return replace(
        Simulation(job="resnet50", system="summit", calibrated_nodes=1, points=points, notes=["A note."]), **changed
    )


def hostile_pages() -> list[StudyPage]:
    strange = replace(bent_scaling(notes=(HOSTILE,)), mode=HOSTILE, bends=HOSTILE)
    changed = simulation(job=HOSTILE, system=HOSTILE, changes=[HOSTILE], notes=[HOSTILE], before=[simulated(4)])
    return [
        scaled(strange, title=HOSTILE),
        simulate_page(changed),
        plan_page(planned(), HOSTILE, HOSTILE, facts=[HOSTILE], notes=[HOSTILE]),
    ]


def numbers_of(chart: str, kind: str) -> list[list[tuple[int, int]]]:
    """Places of the paths whose class begins so, in units of the box."""
    paths = re.findall(rf'<path class="{kind}[^"]*" d="([^"]+)"', chart)
    return [[(int(x), int(y)) for x, y in re.findall(r"(-?\d+) (-?\d+)", path)] for path in paths]


def test_a_scaling_study_says_first_what_bends_the_curve_and_what_to_do():
    outline = Outline(render(scaled(bent_scaling())))
    assert outline.open == []
    assert outline.ids[: outline.ids.index("verdict") + 1][-1] == "verdict"
    assert "A serial part bends the curve: efficiency 0.38 at 8 ranks against 1." in outline.text
    assert "Evaluation and saving take 6.80 of 21.4 ms of a step at 8 ranks, 6.80 at 1" in outline.text
    assert "Beyond 4 ranks doubling brought less than half" in outline.text
    order = ["throughput", "efficiency", "factors", "phases", "memory", "laws"]
    assert [key.removeprefix("strong-") for key in outline.ids if key.removeprefix("strong-") in order] == order


def test_without_a_serial_part_what_bends_is_the_factor_the_study_found():
    found = bent_scaling()
    points = [replace(p, phases_s={k: v for k, v in p.phases_s.items() if k != "evaluation"}) for p in found.points]
    text = Outline(render(scaled(replace(found, points=points, bends="computation")))).text
    assert "Computing itself becomes slower: " in text
    text = Outline(render(scaled(replace(found, points=points, bends="input")))).text
    assert "Input bends the curve: " in text and "docs/feed.md" in text
    text = Outline(render(scaled(replace(found, points=points, bends="communication efficiency")))).text
    assert "overlap are in docs/step.md, compression in docs/compression.md" in text
    text = Outline(render(scaled(replace(found, points=points, bends="load balance")))).text
    assert "Uneven ranks bend the curve: " in text
    text = Outline(render(scaled(replace(found, points=points, bends=None, knee=None)))).text
    assert "It scales: " in text and "not reached" in text
    points = [replace(point, communication_efficiency=None) for point in points]
    unseen = replace(found, points=points, bends=None)
    assert "What bends the curve was not seen: " in Outline(render(scaled(unseen))).text
    assert "What bends it   not known: communication was not seen" in scale_text(unseen, {})


def test_the_page_of_a_study_has_the_numbers_of_its_text_tables():
    text = Outline(render(scaled(bent_scaling()))).text
    # ranks, batch, samples/s, interval, speed-up, efficiency, step, runs
    assert "4 16 2,560.0 2,457.6 to 2,662.4 2.56 0.64 26.6 3" in text
    assert "3.00\u202fGiB" in render(scaled(bent_scaling()))


def test_a_speed_up_is_of_as_many_as_there_are_ranks_whatever_the_fewest_were():
    found = bent_scaling()
    assert "3.00 of 8 that are possible" in Outline(render(scaled(found))).text
    text = Outline(render(scaled(replace(found, points=found.points[1:], forecasts={})))).text
    assert "of 8 that are possible; 2 ranks count as 2" in text


def test_what_bends_the_curve_is_the_same_in_text_and_page():
    found = bent_scaling()
    named = replace(found, bends=_what_bends(found.points, found.mode))
    assert "What bends it   evaluation and saving" in scale_text(named, {})
    assert "A serial part bends the curve: " in Outline(render(scaled(named))).text


def test_strong_and_weak_stand_on_one_page_with_names_of_their_own():
    outline = Outline(render(scaled(bent_scaling("strong"), bent_scaling("weak"))))
    assert len(outline.ids) == len(set(outline.ids))
    assert {"verdict", "verdict-2", "strong-phases", "weak-phases"} <= set(outline.ids)
    assert "Strong scaling. A serial part" in outline.text and "Weak scaling. A serial part" in outline.text


def test_laws_are_drawn_beyond_the_points_alone_and_with_their_ranges():
    page = render(scaled(bent_scaling()))
    measured = numbers_of(page, "curve main")[0]
    for law in numbers_of(page, "curve law"):
        assert min(x for x, _ in law) == max(x for x, _ in measured)
    assert len(numbers_of(page, "range law")) == len(numbers_of(page, "curve law")) >= 3
    assert "Amdahl" in page and re.search(r"Amdahl [\d,]+, [\d,]+ to [\d,]+", page)


def test_without_forecasts_there_are_no_laws():
    found = bent_scaling()
    page = render(scaled(replace(found, points=found.points[1:], forecasts={})))
    assert "strong-laws" not in Outline(page).ids
    assert numbers_of(page, "curve law") == []


def test_a_simulation_shades_what_lies_beyond_four_times_the_measured_nodes():
    page = render(simulate_page(simulation()))
    assert 'class="beyond"' in page
    assert "beyond 4 × the 1 node measured" in Outline(page).text
    assert 'class="beyond"' not in render(simulate_page(simulation(calibrated_nodes=4)))
    assert shaded(0, 4096) is None


def test_what_ifs_stand_beside_what_was_before():
    before = [simulated(nodes, input_s=0.01) for nodes in (1, 4, 16)]
    page = render(simulate_page(simulation(before=before, changes=["input.source=local"])))
    text = Outline(page).text
    # 124 ms against 164 at 16 nodes
    assert "x1.32" in text and "With input.source=local : x1.32." in text
    assert page.count('data-kind="stack" style') == 6
    assert "without the change" in text


def test_a_plan_names_three_counts_and_gives_the_line_to_copy():
    line = "topout submit --nodes 2 --time 6:30:00 train.py"
    page = render(plan_page(planned(), "resnet50 on summit", line))
    text = Outline(page).text
    assert "Ask for 2 nodes: 5.2 h, 10.4 node-hours." in text
    assert f'<pre class="command"><code>{line}</code></pre>' in page
    assert "8 3,072 2.9 h 2.6 h to 3.5 h 23.2 0.43 fastest" in text
    assert [name for name in ("cheapest", "best value", "fastest") if f"<i>{name}</i>" not in page] == []


@pytest.mark.parametrize("number", range(3))
def test_hostile_names_stay_text(number: int):
    page = render(hostile_pages()[number])
    outline = Outline(page)
    assert outline.open == []
    assert not any(tag == "img" for tag, _ in outline.tags)
    assert page.count("</script>") == 1
    assert outline.text.count(HOSTILE) >= 3


@pytest.mark.parametrize("number", range(3))
def test_pages_refer_to_nothing_outside_themselves_and_forbid_it(number: int):
    page = render(hostile_pages()[number])
    outside = [v for _, attrs in Outline(page).tags for name, v in attrs.items() if name in ("src", "href", "data")]
    assert outside == ["data:,"]
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None and "default-src 'none'" in policy[1]
    assert len(page.encode()) < 100_000


def test_every_look_of_a_line_has_a_colour():
    from topout.report.axes import LOOKS

    style = asset("page.css")
    assert [look for look in sorted(LOOKS) if not re.search(rf"\.{look}\b[^{{}}]*{{ --line:", style)] == []


def drawn(**more: object) -> str:
    axis = Axis(title="x", show=str, is_log=True, ticks=(1, 10, 100))
    line = Line(name="a", x=(1, 10, 100), y=(0.0, 5.0, 10.0), has_dots=True)
    chart = Chart(spoken="", x=axis, y=Axis(title="y", show=str, low=0.0, high=10.0), lines=[line])
    return draw(replace_chart(chart, **more))


def replace_chart(chart: Chart, **more: object) -> Chart:
    kept = {name: getattr(chart, name) for name in ("spoken", "x", "y", "lines", "stops", "marks", "beyond")}
    return Chart(**{**kept, **more})


def test_a_logarithmic_axis_puts_equal_ratios_at_equal_distances():
    [places] = numbers_of(drawn(), "curve main")
    assert [x for x, _ in places] == [65, 1000, 1935]
    assert [y for _, y in places] == [500, 250, 0]


def test_labels_that_would_touch_are_left_out_but_never_the_last():
    close = Axis(title="nodes", show=lambda value: f"{value:.0f}", is_log=True, ticks=(1, 512, 4096, 4608))
    chart = drawn(x=close, lines=[Line(name="a", x=(1, 512, 4096, 4608), y=(1, 2, 3, 4))])
    xs = re.search(r'<div class="xs" aria-hidden="true">(.*?)</div>', chart)
    assert xs is not None and re.findall(r">(\d+)<", xs[1]) == ["1", "512", "4608"]


def test_every_point_can_be_reached_and_spoken():
    chart = drawn(stops=[Stop(x=10, words=["10 ranks", "5 samples/s"])])
    stop = next(attrs for tag, attrs in Outline(chart).tags if attrs.get("class") == "stop")
    assert (stop["tabindex"], stop["aria-label"]) == ("0", "10 ranks; 5 samples/s")


def test_a_value_of_zero_on_a_logarithmic_axis_stays_inside_the_box():
    chart = drawn(y=Axis(title="y", show=str, is_log=True), lines=[Line(name="a", x=(1, 10), y=(0.0, 5.0))])
    assert all(-10 <= y <= 510 for _, y in numbers_of(chart, "curve main")[0])


def test_stacks_are_as_tall_as_their_parts():
    columns = [
        Column(parts={"compute": 60.0, "input": 40.0}, words=["a"]),
        Column(parts={"compute": 50.0}, words=["b"]),
    ]
    chart = draw_stacks(
        Stacks(spoken="", x_title="", y_title="ms", groups=[("1", columns)], names=("compute", "input"))
    )
    tops = {name: [int(y) for y in re.findall(rf'class="{name}" d="M\d+ \d+V(\d+)', chart)]
            for name in ("p-backward", "p-input")}  # fmt: skip
    # the axis ends 5 % above the tallest, so 100 of 105 is 24 of 500 below the top
    assert tops == {"p-backward": [214, 262], "p-input": [24]}


def test_pages_are_written_whole_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from topout.cli.main import call

    words = ["simulate", "resnet50-v100", "--system", "summit", "--nodes", "1,2", "--steps", "20"]
    assert call([*words, "--html", str(tmp_path / "x.html")]) == 0
    captured = capsys.readouterr()
    assert "samples/s" in captured.out and f"Page    {tmp_path / 'x.html'}" in captured.err
    assert Outline((tmp_path / "x.html").read_text()).open == []
    assert call([*words, "--html", str(tmp_path)]) == 0
    assert (tmp_path / "simulation.html").is_file()


@pytest.mark.parametrize(("name", "said"), [("train.py", "does not end in .html"), ("no/x.html", "There is no folder")])
def test_a_page_never_replaces_a_script_nor_fails_after_the_work(tmp_path: Path, name: str, said: str, capsys):
    from topout.cli.main import call

    (tmp_path / "train.py").write_text("precious")
    assert call(["scale", "--ranks", "1,2", "--html", str(tmp_path / name), "nosuch.py"]) == 2
    assert said in capsys.readouterr().err
    assert (tmp_path / "train.py").read_text() == "precious"


def test_a_page_replaces_pages_of_topout_and_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from topout.cli.main import call

    words = ["simulate", "resnet50-v100", "--system", "summit", "--steps", "20", "--nodes"]
    page = tmp_path / "simulation.html"
    page.write_text("<!doctype html><title>My notes on topout</title>")
    for given in (page, tmp_path):
        assert call([*words, "1,2", "--html", str(given)]) == 2
        problem, why, do = capsys.readouterr().err.splitlines()
        assert problem.endswith("simulation.html is there already.") and "no page of topout's" in why
        assert do == "  do   name another file"
    assert page.read_text() == "<!doctype html><title>My notes on topout</title>"
    page.write_text("")
    for nodes in ("1,2", "1,4"):
        assert call([*words, nodes, "--html", str(page)]) == 0
        assert Outline(page.read_text()).open == []


def test_a_plan_is_written_as_a_page(tmp_path: Path, capsys):
    from topout.cli.main import call

    words = [
        "plan",
        "resnet50-v100",
        "--system",
        "summit",
        "--samples",
        "1.28e6",
        "--epochs",
        "90",
        "--nodes",
        "1,4,16",
    ]
    assert call([*words, "--html", str(tmp_path / "plan.html")]) == 0
    line = next(row for row in capsys.readouterr().out.splitlines() if "topout submit" in row)
    assert line.partition("topout submit")[2] in Outline((tmp_path / "plan.html").read_text()).text
