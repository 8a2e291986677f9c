"""The page of `topout hardware --for`: a ranking, rooflines, and the job on them as far as the run knows."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.report.sample import HOSTILE
from tests.report.test_html import Outline
from tests.report.test_study_pages import numbers_of
from tests.tables import Plan, StepPlan, build_run
from topout.cli.local_roofs import local_roofs
from topout.cli.main import call

MS = 1_000_000
KERNEL = {"name": "matrix product", "shape": "8192³", "flops": 1e12, "moved_bytes": 4e8, "dtype": "bfloat16",
          "device": "NVIDIA A100-SXM4-80GB", "fastest_s": 0.004, "instructions": None}  # fmt: skip
DOCTOR = {
    "links": [],
    "started_at": "2026-11-15T10:00:00",
    "roofs": {"n01": {"fastest_flops_per_s": {"bfloat16": 2.5e14}, "measured_bytes_per_s": 1.7e12}},
    "hosts": [{"host": "n01", "kernels": [KERNEL]}],
}


def recorded(path: Path, **facts: Any) -> Path:
    steps = [[StepPlan(input=10 * MS, forward=30 * MS, backward=60 * MS, samples=64) for _ in range(20)]]
    known = {"device_name": "NVIDIA A100-SXM4-80GB", "batch_size": 64, "flops_per_step": 6e12, **facts}
    return build_run(path / "run", steps, Plan(facts=known)).folder.path


def page_of(tmp_path: Path, run: Path, *words: str, doctor: dict[str, Any] | None = None) -> str:
    target = tmp_path / "devices.html"
    if doctor is not None:
        (tmp_path / "doctor.json").write_text(json.dumps(doctor))
        words = (*words, "--doctor", str(tmp_path / "doctor.json"))
    assert call(["hardware", "--for", str(run), "--html", str(target), *words]) == 0
    return target.read_text()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_job_stands_where_its_rate_and_what_could_be_moved_allow(tmp_path: Path):
    page = page_of(tmp_path, recorded(tmp_path), doctor=DOCTOR)
    outline = Outline(page)
    assert outline.open == []
    assert {"ranking", "roofline-gpu", "roofline-tpu"} <= set(outline.ids)
    # 6 TFLOP in 90 ms; 2,039 GB/s could move 184 GB in that time
    assert "A rank did 66.7 TFLOP/s while it computed" in outline.text
    assert "counted operations, not bytes" in outline.text and "from 32.7" in outline.text
    [[start, end]] = numbers_of(page, "curve job")
    assert start[1] == end[1] and start[0] < end[0]


def test_measured_peaks_stand_beside_those_of_the_table(tmp_path: Path):
    page = page_of(tmp_path, recorded(tmp_path), doctor=DOCTOR)
    assert len(numbers_of(page, "curve local")) == 1
    assert "measured on n01, bfloat16" in page and "matrix product, 8192³" in page
    text = Outline(page_of(tmp_path, recorded(tmp_path / "other"))).text
    assert "No measured peaks: topout doctor measures this machine" in text


def test_a_run_without_operations_says_plainly_that_it_has_no_place(tmp_path: Path):
    page = page_of(tmp_path, recorded(tmp_path, flops_per_step=None))
    assert "The run counted no operations of a step" in Outline(page).text
    assert numbers_of(page, "curve job") == []


def test_prices_name_the_cheapest_and_their_date(tmp_path: Path):
    prices = tmp_path / "prices.toml"
    prices.write_text('date = "2026-11-01"\ncurrency = "EUR"\n[device."H200"]\nper_hour = 3.6\nwatts = 700\n')
    text = Outline(page_of(tmp_path, recorded(tmp_path), "--prices", str(prices))).text
    assert "prices of 2026-11-01" in text and "EUR / million" in text and "Cheapest H200" in text


def test_a_run_on_processors_is_placed_under_their_roof(tmp_path: Path):
    run = recorded(tmp_path, device_name=None, flops_per_step=9e9)
    kernel = {**KERNEL, "device": "cpu", "dtype": "float32"}
    roof = {"fastest_flops_per_s": {"float32": 3e11}, "measured_bytes_per_s": 2e10}
    page = page_of(
        tmp_path, run, doctor={**DOCTOR, "roofs": {"n01": roof}, "hosts": [{"host": "n01", "kernels": [kernel]}]}
    )
    outline = Outline(page)
    assert "roofline-cpu" in outline.ids
    # 9 GFLOP in 90 ms over 20 GB/s
    assert "A rank did 100 GFLOP/s" in outline.text and "from 5 FLOP/byte upwards" in outline.text


def test_hostile_names_stay_text(tmp_path: Path):
    strange = {**KERNEL, "name": HOSTILE, "shape": HOSTILE}
    roofs = {HOSTILE: DOCTOR["roofs"]["n01"]}
    run = recorded(tmp_path, device_name=f"A100 {HOSTILE}")
    hosts = [{"host": HOSTILE, "kernels": [strange]}]
    page = page_of(tmp_path, run, doctor={**DOCTOR, "started_at": HOSTILE, "roofs": roofs, "hosts": hosts})
    outline = Outline(page)
    assert outline.open == []
    assert not any(tag == "img" for tag, _ in outline.tags)
    assert HOSTILE in outline.text


@pytest.mark.parametrize(
    "broken",
    [
        {"roofs": None},
        {"roofs": {"n01": {"fastest_flops_per_s": {"bfloat16": "fast"}, "measured_bytes_per_s": 1}}},
        {"roofs": {"n01": {"fastest_flops_per_s": {}, "measured_bytes_per_s": 1e9}}},
        {"hosts": "n01"},
        {"hosts": [None]},
    ],
)
def test_a_diagnosis_that_lacks_something_is_left_out(broken: dict[str, Any]):
    assert local_roofs({**DOCTOR, **broken}, "bf16") == []


def test_a_page_needs_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert call(["hardware", "--html", str(tmp_path / "x.html")]) == 2
    assert "--html stands alone" in capsys.readouterr().err
