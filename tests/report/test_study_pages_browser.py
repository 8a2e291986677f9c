"""Pages of studies in a real browser: they log and ask for nothing, no labels touch, points answer to the keyboard."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.report.browser import BINARY, Browser
from tests.report.study_samples import bent_scaling, planned, scaled, simulated
from topout.cli.plan_page import plan_page
from topout.cli.simulate_page import Simulation, simulate_page
from topout.report.study_page import render

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BINARY is None, reason="chromium is not installed (apt-get install chromium)"),
]
OVERLAPS = """(() => {
  const touching = [];
  for (const axis of document.querySelectorAll(".xs:not(.slant), .ys")) {
    const boxes = [...axis.children].map((label) => [label.textContent, label.getBoundingClientRect()]);
    for (const [a, first] of boxes) for (const [b, second] of boxes) {
      if (a < b && first.left < second.right && second.left < first.right && first.top < second.bottom
          && second.top < first.bottom) touching.push(`${a} and ${b}`);
    }
  }
  return touching;
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        # a window that nobody looks at gets no focus
        started.call("Emulation.setFocusEmulationEnabled", enabled=True)
        yield started


def page(tmp_path: Path, kind: str) -> Path:
    counts = [2**power for power in range(13)] + [4608]
    simulation = Simulation(
        job="resnet50", system="summit", calibrated_nodes=64, points=[simulated(nodes) for nodes in counts],
        before=[simulated(nodes, input_s=0.004) for nodes in counts], changes=["input.source=local"],
    )  # fmt: skip
    made = {
        "scale": lambda: scaled(bent_scaling("strong"), bent_scaling("weak")),
        "simulate": lambda: simulate_page(simulation),
        "plan": lambda: plan_page(planned(), "resnet50", "topout submit train.py", calibrated_nodes=1),
    }
    path = tmp_path / f"{kind}.html"
    path.write_text(render(made[kind]()))
    return path


@pytest.mark.parametrize("kind", ["scale", "simulate", "plan"])
def test_a_page_logs_nothing_asks_nobody_and_no_labels_touch(browser: Browser, tmp_path: Path, kind: str):
    browser.console.clear()
    browser.requests.clear()
    browser.open(page(tmp_path, kind))
    assert browser.console == []
    assert len([url for url in browser.requests if not url.startswith("data:")]) == 1
    assert browser.evaluate(OVERLAPS) == []


@pytest.mark.parametrize("kind", ["scale", "simulate", "plan"])
def test_a_narrow_screen_needs_no_sideways_scrolling(browser: Browser, tmp_path: Path, kind: str):
    browser.resize(400, 900)
    try:
        browser.open(page(tmp_path, kind))
        assert browser.evaluate("document.documentElement.scrollWidth") <= 400
    finally:
        browser.resize(1280, 900)


def test_a_point_says_what_it_is_when_the_keyboard_reaches_it(browser: Browser, tmp_path: Path):
    browser.open(page(tmp_path, "scale"))
    browser.evaluate("document.querySelectorAll('.stop')[2].focus()")
    shown = browser.evaluate("document.getElementById('tooltip').innerText")
    assert shown.startswith("4 ranks") and "measured 2,560.0 samples/s, 2,457.6 to 2,662.4" in shown
    browser.evaluate("document.activeElement.blur()")
    assert browser.evaluate("document.getElementById('tooltip').hidden")


def test_lines_follow_the_theme(browser: Browser, tmp_path: Path):
    browser.open(page(tmp_path, "scale"))
    stroke = "getComputedStyle(document.querySelector('path.curve.main')).stroke"
    light = browser.evaluate(stroke)
    browser.evaluate("document.getElementById('theme').click()")
    try:
        assert light != browser.evaluate(stroke) != "none"
    finally:
        browser.evaluate("document.getElementById('theme').click()")
