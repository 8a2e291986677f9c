"""`topout hardware`: the table, one device, JSON; without torch, and with the nearest name for a wrong one."""

import json
from pathlib import Path

import pytest

from topout.preflight.hardware_table import listing
from topout.schema.hardware import devices

REPOSITORY = Path(__file__).resolve().parents[2]


def test_every_device_has_a_line_with_its_ridge_points(run_topout, torchless):
    done = run_topout(["hardware"], env={**torchless, "COLUMNS": "110"})
    assert done.code == 0
    rows = [line.split() for line in done.stdout.splitlines()]
    (words,) = [row for row in rows if row[:1] == ["H200"] and row[1] != "NVL"]
    # FP64, FP32, TF32, 16-bit and INT8 in TFLOP/s, memory, bandwidth, PCIe, link; then the ridge points
    assert words[1:10] == ["66.9", "66.9", "495", "989", "1,979", "141", "4,800", "63.0~", "900"]
    assert words[10:] == ["13.9", "13.9", "206", "412"]
    assert max(len(line) for line in done.stdout.splitlines()) <= 110
    assert done.stderr.splitlines()[-1].startswith("Next    topout ")


def test_one_device_tells_where_each_figure_comes_from(run_topout):
    said = run_topout(["hardware", "h200"]).stdout
    assert said.startswith("H200  NVIDIA H200 SXM")
    (line,) = [line for line in said.splitlines() if line.startswith("  fp16 matrix sparse")]
    assert "1,979 TFLOP/s" in line and "sparse" in line and "read" in line
    assert "https://" in said


@pytest.mark.parametrize("name", ["NVIDIA H200", "1080", "epyc 7601"])
def test_a_device_is_found_by_what_a_person_types(name, run_topout):
    done = run_topout(["hardware", name])
    assert done.code == 0, done.stderr


@pytest.mark.parametrize(("name", "says"), [("H2000", "has no 'H2000'"), ("TPU", "fits 5 devices")])
def test_a_wrong_name_is_answered_with_a_near_one_and_exit_code_2(name, says, run_topout):
    done = run_topout(["hardware", name])
    assert (done.code, done.stdout) == (2, "")
    assert says in done.stderr and "topout hardware '" in done.stderr


@pytest.mark.parametrize("option", ["--prices", "--doctor", "--precision", "--html"])
def test_what_is_for_a_run_is_not_ignored_without_one(option, run_topout):
    done = run_topout(["hardware", option, "fp64.html"])
    assert done.code == 2
    assert f"{option} stands alone" in done.stderr and "--for" in done.stderr


def test_a_diagnosis_is_for_the_page_and_not_ignored_without_one(run_topout):
    done = run_topout(["hardware", "--for", "run", "--doctor", "doctor.json"])
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith("--doctor stands alone.") and "do   --html devices.html" in done.stderr


def test_json_is_versioned_and_complete(run_topout):
    document = json.loads(run_topout(["hardware", "--json"]).stdout)
    assert document["version"] == 1
    by_name = {device["name"]: device for device in document["devices"]}
    assert len(by_name) > 40
    figure = by_name["V100"]["figures"]["fp16_matrix"]
    assert (figure["value"], figure["unit"], figure["density"], figure["confidence"]) == (
        125e12,
        "FLOP/s",
        "dense",
        "read",
    )
    assert figure["source"] in document["sources"]
    assert round(by_name["V100"]["ridge_flops_per_byte"]["fp16"]) == 139


def test_the_page_shows_the_table_as_it_is():
    page = (REPOSITORY / "docs/hardware.md").read_text()
    shown = page.partition("```\n")[2].partition("\n```")[0]
    assert shown == listing(devices(), 110)


def test_a_name_and_a_run_are_not_both_asked_for(run_topout):
    done = run_topout(["hardware", "H200", "--for", "topout-runs/one"])
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == "H200 and --for topout-runs/one exclude each other."
