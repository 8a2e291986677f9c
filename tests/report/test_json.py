"""analysis.json: written whole, read back equal, versioned, and of the shape the docs say."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.report.analyses import LATE_RANK, MEASURES, NOTHING_SEEN
from topout.report.json_report import json_schema, read, to_json, write
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.measures import ANALYSIS_VERSION
from topout.schema.run_folder import TO_READ_NEWER, RunFolder

SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "analysis.schema.json"


@pytest.mark.parametrize("analysis", [LATE_RANK, NOTHING_SEEN])
def test_what_is_written_is_read_back_equal(analysis, tmp_path):
    path = write(analysis, RunFolder(tmp_path))
    assert path == tmp_path / "analysis.json"
    assert read(path) == analysis
    assert [item.name for item in tmp_path.iterdir()] == ["analysis.json"]


def test_the_verdict_stands_at_the_top_level():
    document = json.loads(to_json(LATE_RANK))
    assert document["verdict"]["name"] == "load-imbalance"
    assert document["version"] == ANALYSIS_VERSION
    assert document["findings"][0]["code"] == "LB01"


def test_keys_keep_the_order_of_the_schema():
    assert list(json.loads(to_json(LATE_RANK))) == [
        "version", "run", "script", "status", "exit_code", "duration_s", "verdict", "findings", "measures",
    ]  # fmt: skip


def test_what_json_does_not_have_becomes_null():
    odd = replace(LATE_RANK, duration_s=float("nan"), measures=replace(MEASURES, shares={"input": float("inf")}))
    document = json.loads(to_json(odd))
    assert document["duration_s"] is None
    assert document["measures"]["shares"] == {"input": None}


def test_a_path_that_is_not_utf_8_is_spelled_out():
    odd = replace(LATE_RANK, script="/s\udcff/train.py", duration_s=float("nan"), exit_code=np.int64(3))
    document = json.loads(to_json(odd))
    assert (document["script"], document["duration_s"], document["exit_code"]) == ("/s\\udcff/train.py", None, 3)


def test_numbers_of_numpy_are_plain_numbers():
    odd = replace(LATE_RANK, exit_code=np.int64(3), measures=replace(MEASURES, shares={"input": np.float64(0.25)}))
    document = json.loads(to_json(odd))
    assert document["exit_code"] == 3
    assert document["measures"]["shares"] == {"input": 0.25}


def test_not_measured_is_null_and_zero_is_zero():
    shares = {"input": 0.0}
    document = json.loads(to_json(replace(LATE_RANK, measures=replace(MEASURES, shares=shares, pop=None))))
    assert document["measures"]["pop"] is None
    assert document["measures"]["shares"]["input"] == 0


def test_an_analysis_of_a_newer_version_is_refused(tmp_path):
    path = tmp_path / "analysis.json"
    path.write_text(to_json(replace(LATE_RANK, version=ANALYSIS_VERSION + 1)))
    with pytest.raises(TopoutError, match="newer topout") as caught:
        read(path)
    assert (caught.value.exit_code, caught.value.do) == (ExitCode.USAGE, TO_READ_NEWER)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"version": 1}', '{"version": "1"}', "\x00"])
def test_a_damaged_analysis_is_an_error_that_says_how_to_make_it_anew(content, tmp_path):
    path = tmp_path / "analysis.json"
    path.write_text(content)
    with pytest.raises(TopoutError) as caught:
        read(path)
    assert f"topout analyze {tmp_path}" in caught.value.do


def test_a_missing_analysis_is_an_error_too(tmp_path):
    with pytest.raises(TopoutError, match="cannot be read"):
        read(tmp_path / "analysis.json")


def test_a_later_field_does_not_hinder_reading(tmp_path):
    document = json.loads(to_json(LATE_RANK)) | {"mood": "good"}
    path = tmp_path / "analysis.json"
    path.write_text(json.dumps(document))
    assert read(path) == LATE_RANK


def test_the_published_schema_is_current():
    assert SCHEMA.read_text() == json_schema(), "python -m topout.report.json_report > docs/analysis.schema.json"
