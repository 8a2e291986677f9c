"""`topout analyze`: from a run folder to a verdict, without torch, writing what it owns and nothing else."""

import json
import os

import pytest

from tests.tables import Plan, StepPlan, build_run
from topout.cli.main import call

MS = 1_000_000
DETAILS = {
    "spec": {"script": "train.py"},
    "exit_code": 0,
    "duration_s": 12.5,
    "notes": ["The network was not sampled."],
}


def build_late_rank(path):
    """Rank 1 needs 16 ms for backward, the others 10 ms: they wait 6 ms of a step of 23 ms."""
    steps = [
        [StepPlan(forward=5 * MS, backward=(16 if rank == 1 else 10) * MS, optimizer=MS) for _ in range(60)]
        for rank in range(4)
    ]
    return build_run(path, steps, Plan(transfer_ns=MS, run=DETAILS)).folder


@pytest.fixture
def late_rank(tmp_path):
    return build_late_rank(tmp_path / "topout-runs" / "2026-11-15-train-1")


def test_the_verdict_is_printed_and_written_without_torch(late_rank, run_topout, torchless):
    done = run_topout(["analyze", late_rank.path], env=torchless)
    assert (done.code, done.stderr) == (0, "")
    assert "LOAD-IMBALANCE" in done.stdout
    assert "rank 1" in done.stdout
    assert done.stdout.splitlines()[-1] == "Next    topout explain LB01"
    document = json.loads(late_rank.analysis_json.read_text())
    assert document["verdict"]["name"] == "load-imbalance"
    assert document["verdict"]["ranks"] == [1]
    assert document["findings"][0]["code"] == "LB01"
    assert "The network was not sampled." in document["measures"]["not_measured"]
    assert late_rank.report_html.stat().st_size > 0


def test_json_on_stdout_is_the_file(late_rank, run_topout):
    done = run_topout(["analyze", late_rank.path, "--json", "--no-html"])
    assert done.stdout == late_rank.analysis_json.read_text()
    assert done.stderr.splitlines()[-1] == "Next    topout explain LB01"
    assert not late_rank.report_html.exists()


def test_analysing_twice_says_the_same(late_rank, run_topout):
    first = run_topout(["analyze", late_rank.path, "--json"]).stdout
    assert run_topout(["analyze", late_rank.path, "--json"]).stdout == first


def test_without_a_run_the_newest_is_read(late_rank, run_topout, tmp_path):
    other = build_late_rank(tmp_path / "topout-runs" / "2026-11-14-old-1")
    os.utime(other.run_json, (1, 1))
    done = run_topout(["analyze", "--no-html"], cwd=tmp_path)
    assert done.stdout.startswith("2026-11-15-train-1 · train.py · 4 ranks on 1 host")
    assert not other.analysis_json.exists()


def test_without_any_run_the_error_says_how_to_make_one(run_topout, tmp_path):
    done = run_topout(["analyze"], cwd=tmp_path)
    assert done.code == 2
    assert "topout run train.py" in done.stderr


@pytest.mark.parametrize(
    ("content", "says"),
    [('{"version": 99}', "pip install . in its folder"), ("{broken", "damaged"), ("{}", "damaged"), ("[]", "damaged")],
)
def test_a_run_of_a_newer_version_or_damaged_is_refused(content, says, late_rank, run_topout):
    late_rank.run_json.write_text(content)
    done = run_topout(["analyze", late_rank.path])
    assert (done.code, done.stdout) == (2, "")
    assert "why" in done.stderr and says in done.stderr
    assert not late_rank.analysis_json.exists()


def test_an_analysis_of_a_newer_topout_is_only_replaced_by_force(late_rank, run_topout):
    late_rank.analysis_json.write_text('{"version": 99}')
    refused = run_topout(["analyze", late_rank.path, "--no-html"])
    assert refused.code == 2
    assert "pip install . in its folder; or pass --force" in refused.stderr
    assert late_rank.analysis_json.read_text() == '{"version": 99}'
    assert run_topout(["analyze", late_rank.path, "--no-html", "--force"]).code == 0
    assert json.loads(late_rank.analysis_json.read_text())["version"] == 1


@pytest.mark.parametrize("value", ["x", float("nan"), [1], {}, -1, True, pytest.param(10**400, id="400 digits"), 1e308])
@pytest.mark.parametrize("key", ["num_cores", "memory_bytes", "cores", "core", "duration_s", "data_share"])
def test_values_that_no_run_writes_are_left_out(late_rank, key, value, capsys):
    run = json.loads(late_rank.run_json.read_text())
    if key == "duration_s":
        run[key] = value
    elif key == "data_share":
        run["spec"][key] = value
    elif key in ("cores", "core"):
        run["ranks"][0]["cores"] = value if key == "cores" else [value]
    else:
        run["hosts"] = [{"name": "n01", key: value}]
    late_rank.run_json.write_text(json.dumps(run))
    assert call(["analyze", str(late_rank.path)]) == 0, capsys.readouterr().err
    assert "LOAD-IMBALANCE" in capsys.readouterr().out


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["run.json", "rank-00000.events", "rank-00000.counters", "analysis.json"])
@pytest.mark.parametrize("verb", ["analyze", "compare"])
def test_a_pipe_in_place_of_a_file_is_refused_before_it_is_opened(late_rank, verb, name, capsys):
    other = build_late_rank(late_rank.path.with_name("other"))
    (late_rank.path / name).unlink(missing_ok=True)
    os.mkfifo(late_rank.path / name)
    code = call([verb, str(late_rank.path), *([str(other.path)] if verb == "compare" else [])])
    if (verb, name) == ("compare", "analysis.json"):
        # which it does not read
        assert code == 0
        return
    assert code == 2
    problem, why, do = capsys.readouterr().err.splitlines()
    assert problem == f"{late_rank.path / name} is not a file."
    assert "it is a pipe" in why and "name another" in do


def test_a_damaged_analysis_is_replaced(late_rank, run_topout):
    late_rank.analysis_json.write_text("{")
    assert run_topout(["analyze", late_rank.path, "--no-html"]).code == 0
    assert json.loads(late_rank.analysis_json.read_text())["version"] == 1


def test_a_folder_that_cannot_be_written_is_still_explained(late_rank, run_topout):
    # a folder in the way of the file stops even root
    late_rank.analysis_json.mkdir()
    done = run_topout(["analyze", late_rank.path])
    assert done.code == 0
    assert "LOAD-IMBALANCE" in done.stdout
    assert "Nothing is written" in done.stderr


def test_a_run_without_steps_says_what_is_missing(run_topout, tmp_path):
    folder = build_late_rank(tmp_path / "run")
    for rank in range(4):
        folder.events(rank).write_bytes(b"")
    done = run_topout(["analyze", folder.path])
    assert done.code == 0
    assert "NO VERDICT" in done.stdout
    assert json.loads(folder.analysis_json.read_text())["measures"]["not_measured"]


def test_the_files_of_the_run_are_left_as_they_were(late_rank, run_topout):
    before = {path.name: path.read_bytes() for path in late_rank.path.iterdir()}
    run_topout(["analyze", late_rank.path])
    after = {path.name: path.read_bytes() for path in late_rank.path.iterdir()}
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {"analysis.json", "report.html"}
