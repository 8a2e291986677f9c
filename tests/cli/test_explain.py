"""`topout explain`: any code or verdict, without torch, with the nearest name for a wrong one."""

import json

import pytest

from topout.schema.measures import VERDICTS


def test_a_rule_is_explained_on_stdout_and_the_next_command_on_stderr(run_topout, torchless):
    done = run_topout(["explain", "IN01"], env=torchless)
    assert done.code == 0
    assert done.stdout.startswith("IN01  The input pipeline starves the devices.\n")
    assert "num_workers" in done.stdout
    assert done.stderr.splitlines()[-1].startswith("Next    topout ")


def test_without_a_name_everything_is_listed_with_one_line_each(run_topout):
    done = run_topout(["explain"])
    listed = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")]
    assert listed[: len(VERDICTS)] == list(VERDICTS)
    assert {"IN01", "LB01", "CK01"} < set(listed)
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("name", ["load-imbalance", "co01"])
def test_json_holds_name_kind_title_and_text(name, run_topout):
    document = json.loads(run_topout(["explain", name, "--json"]).stdout)
    assert list(document) == ["name", "kind", "title", "text"]
    assert document["name"].lower() == name
    assert document["text"].startswith(document["title"])


def test_json_without_a_name_is_a_list(run_topout):
    documents = json.loads(run_topout(["explain", "--json"]).stdout)
    assert {item["kind"] for item in documents} == {"rule", "verdict"}


def test_a_wrong_code_is_answered_with_the_nearest_and_exit_code_2(run_topout):
    done = run_topout(["explain", "IN1"])
    assert done.code == 2
    assert done.stdout == ""
    assert "topout explain IN0" in done.stderr
