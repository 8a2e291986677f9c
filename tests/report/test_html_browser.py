"""The page in a real browser: it draws, zooms and answers, asks nobody for anything, and no name in it becomes code."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.report.browser import BINARY, Browser
from tests.report.sample import HOSTILE, make_analysis, make_run, make_series
from topout.report.html import render

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BINARY is None, reason="chromium is not installed (apt-get install chromium)"),
]

COLOURS_DRAWN = """(() => {
  const canvas = document.getElementById("timeline-canvas");
  const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const seen = new Set();
  for (let i = 0; i < image.length; i += 4) seen.add(image[i] << 16 | image[i + 1] << 8 | image[i + 2]);
  return [...seen];
})()"""
VIEW = "document.getElementById('timeline-view').textContent"
CANVAS = """(() => {
  const canvas = document.getElementById("timeline-canvas");
  canvas.scrollIntoView({ block: "center", behavior: "instant" });
  const { left, top, width, height } = canvas.getBoundingClientRect();
  return { left, top, width, height };
})()"""
INPUT, BACKWARD = 0xE69F00, 0x0F6FAE


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


def page_of(tmp_path: Path, num_ranks: int, num_steps: int, name: str = "augment") -> Path:
    series = make_series(num_ranks, num_steps, span_name=name)
    path = tmp_path / "report.html"
    path.write_text(render(make_analysis(series, script=name), series, make_run(series)))
    return path


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Browser:
    browser.console.clear()
    browser.requests.clear()
    browser.open(page_of(tmp_path, 2, 500))
    return browser


def test_the_timeline_is_drawn_in_the_colours_of_its_phases(opened: Browser):
    assert {INPUT, BACKWARD} <= set(opened.evaluate(COLOURS_DRAWN))


def test_opening_it_logs_no_error_and_requests_nothing_but_itself(opened: Browser):
    assert opened.console == []
    asked = [url for url in opened.requests if not url.startswith("data:")]
    assert len(asked) == 1 and asked[0].endswith("/report.html")


def test_buttons_zoom_in_and_back_out(opened: Browser):
    whole, before = opened.evaluate(VIEW), sorted(opened.evaluate(COLOURS_DRAWN))
    opened.evaluate("for (let i = 0; i < 6; i++) document.querySelector('[data-do=in]').click()")
    opened.settle()
    assert opened.evaluate(VIEW) != whole
    assert sorted(opened.evaluate(COLOURS_DRAWN)) != before
    opened.evaluate("document.querySelector('[data-do=all]').click()")
    opened.settle()
    assert opened.evaluate(VIEW) == whole


def test_dragging_across_a_stretch_zooms_into_it(opened: Browser):
    frame = opened.evaluate(CANVAS)
    y = frame["top"] + 20
    opened.drag((frame["left"] + frame["width"] * 0.5, y), (frame["left"] + frame["width"] * 0.6, y))
    first, last = opened.evaluate(VIEW).split(",")[0].removeprefix("steps ").split("–")
    # a tenth of the canvas, of which the labels on the left take a part: about 53 of the 500 steps
    assert 45 <= int(last) - int(first) <= 65


def test_the_wheel_scrolls_the_page_until_the_timeline_is_in_use(opened: Browser):
    whole, frame = opened.evaluate(VIEW), opened.evaluate(CANVAS)
    at = (frame["left"] + frame["width"] / 2, frame["top"] + 20)
    opened.evaluate("document.activeElement.blur()")
    opened.mouse("mouseWheel", *at, deltaX=0, deltaY=-100)
    opened.settle()
    assert opened.evaluate(VIEW) == whole
    opened.evaluate("document.getElementById('timeline-canvas').focus()")
    frame = opened.evaluate(CANVAS)
    opened.mouse("mouseWheel", at[0], frame["top"] + 20, deltaX=0, deltaY=-100)
    opened.settle()
    assert opened.evaluate(VIEW) != whole


def test_the_keyboard_zooms_and_moves(opened: Browser):
    opened.evaluate("document.getElementById('timeline-canvas').focus()")
    whole = opened.evaluate(VIEW)
    opened.press("+")
    zoomed = opened.evaluate(VIEW)
    opened.press("ArrowRight")
    moved = opened.evaluate(VIEW)
    opened.press("0")
    assert len({whole, zoomed, moved}) == 3
    assert opened.evaluate(VIEW) == whole


def test_hovering_names_rank_step_and_phases(opened: Browser):
    frame = opened.evaluate(CANVAS)
    opened.mouse("mouseMoved", frame["left"] + frame["width"] / 2, frame["top"] + 60)
    shown = opened.evaluate(
        "document.getElementById('tooltip').hidden ? '' : document.getElementById('tooltip').innerText"
    )
    assert shown.startswith("rank 1, step 2")
    assert "input" in shown and "backward" in shown and "ms" in shown
    opened.mouse("mouseMoved", 2, 2)
    assert opened.evaluate("document.getElementById('tooltip').hidden")


def test_a_phase_chosen_in_the_legend_is_shown_alone(opened: Browser):
    opened.evaluate("document.querySelector('#timeline-legend button').click()")
    opened.settle()
    assert BACKWARD not in opened.evaluate(COLOURS_DRAWN)
    assert opened.evaluate("document.querySelector('#timeline-legend button').getAttribute('aria-pressed')") == "true"


def test_the_theme_can_be_turned_and_the_canvas_follows(opened: Browser):
    background = "getComputedStyle(document.body).backgroundColor"
    light, colours = opened.evaluate(background), set(opened.evaluate(COLOURS_DRAWN))
    opened.evaluate("document.getElementById('theme').click()")
    opened.settle()
    assert opened.evaluate(background) != light
    assert set(opened.evaluate(COLOURS_DRAWN)) != colours
    opened.evaluate("document.getElementById('theme').click()")


def test_a_span_named_like_the_end_of_a_script_shows_literally(browser: Browser, tmp_path: Path):
    browser.console.clear()
    browser.open(page_of(tmp_path, 2, 20, name=HOSTILE))
    assert browser.evaluate("document.querySelector('.spans code').textContent") == HOSTILE
    assert browser.evaluate("document.querySelector('h1').textContent") == HOSTILE
    assert browser.evaluate("document.title").startswith(HOSTILE)
    assert browser.evaluate("document.images.length") == 0
    assert INPUT in browser.evaluate(COLOURS_DRAWN)
    assert browser.console == []


def test_sixty_four_ranks_times_a_thousand_steps_open(browser: Browser, tmp_path: Path):
    seconds = browser.open(page_of(tmp_path, 64, 1000))
    print(f"64 x 1,000 drawn after {seconds:.2f} s")
    assert seconds < 60  # a functional deadline; the figure itself is printed
    assert len(browser.evaluate(COLOURS_DRAWN)) > 20  # shades of the one phase that the verdict is about


def test_a_narrow_screen_needs_no_sideways_scrolling(browser: Browser, tmp_path: Path):
    browser.resize(400, 900)
    try:
        browser.open(page_of(tmp_path, 64, 50))
        assert browser.evaluate("document.documentElement.scrollWidth") <= 400
    finally:
        browser.resize(1280, 900)


def test_it_prints(opened: Browser, tmp_path: Path):
    paper = tmp_path / "report.pdf"
    opened.print_pdf(paper)
    assert paper.read_bytes().startswith(b"%PDF")
    opened.screenshot(tmp_path / "report.png")
    assert (tmp_path / "report.png").stat().st_size > 20_000


def test_it_reads_without_javascript(browser: Browser, tmp_path: Path):
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.load(page_of(tmp_path, 2, 20))
        text = browser.evaluate("document.body.innerText")
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert "Opening files holds this job back" in text
    assert "The timeline needs JavaScript" in text
    assert "From ideal to measured" in text
