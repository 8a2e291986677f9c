"""Which points are run, with which batch, where, and what happens to those that fail."""

import json
from subprocess import CompletedProcess

import pytest

from tests.conftest import REPOSITORY
from tests.study.test_scaling import recorded
from topout.cli.main import call
from topout.launch.allocation import Allocation, Task
from topout.launch.detect import check_world
from topout.schema.errors import TopoutError
from topout.schema.world import Core, Host
from topout.study import scaling_runs
from topout.study.largest_batch import Search, Trial, largest_batch, that_divides
from topout.study.placement import nodes_for, options_inside
from topout.study.scaling_runs import Account, Batch, Point, by_mode, observe, planned_points, run_point, start_run

SCRIPT = str(REPOSITORY / "tests" / "scripts" / "batches.py")


def planned(mode, batch, counts=(1, 2, 4)):
    return [(point.ranks, point.batch) for point in planned_points(list(counts), mode, batch)]


def test_without_an_option_of_the_script_its_loaders_are_set():
    (first, second) = planned_points([1, 2], "strong", Batch(64, None, "rank"))
    assert (first.options, second.options) == (("--batch", "64"), ("--batch", "32"))
    assert (first.words, second.words) == ((), ())


def test_strong_and_weak_share_the_point_of_the_fewest_ranks():
    assert planned("both", Batch(8, None, "rank")) == [(1, 8), (2, 8), (2, 4), (4, 8), (4, 2)]


def test_runs_of_both_modes_are_told_apart_by_their_batches(tmp_path):
    shapes = [(1, 8), (2, 8), (2, 4), (4, 8), (4, 2)]
    runs = [observe(recorded(tmp_path / f"{n}-{size}", n, samples=size)) for n, size in shapes]
    found = by_mode(runs, "both")
    assert [(run.ranks, run.batch) for run in found["strong"]] == [(1, 8), (2, 4), (4, 2)]
    assert [(run.ranks, run.batch) for run in found["weak"]] == [(1, 8), (2, 8), (4, 8)]
    early = observe(recorded(tmp_path / "early", 8, samples=0, status="failed"))
    # whose batch is not known: each study says that it is left out
    assert all(early in found for found in by_mode([*runs, early], "both").values())
    stray = observe(recorded(tmp_path / "stray", 2, samples=6))
    with pytest.raises(TopoutError, match="belongs to neither: 2 ranks with a batch of 6"):
        by_mode([*runs, stray], "both")
    with pytest.raises(TopoutError, match="no point that strong and weak"):
        by_mode([*runs, observe(recorded(tmp_path / "one", 1, samples=6))], "both")


def test_both_gives_two_tables_and_one_list_in_json(tmp_path, capsys):
    shapes = [(1, 8), (2, 8), (2, 4)]
    folders = [str(recorded(tmp_path / f"{n}-{size}", n, samples=size)) for n, size in shapes]
    assert call(["scale", "--mode", "both", *folders]) == 0
    text = capsys.readouterr().out
    assert text.index("strong scaling") < text.index("weak scaling")
    assert call(["scale", "--mode", "both", "--json", *folders]) == 0
    studies = json.loads(capsys.readouterr().out)["studies"]
    assert [[point["batch"] for point in study["points"]] for study in studies] == [[8, 4], [8, 8]]


def test_laws_are_printed_with_their_numbers_and_ranges(tmp_path, capsys):
    folders = [
        str(recorded(tmp_path / f"{n}-{repeat}", n, compute=30 + 3 * repeat, transfer=2 * (n - 1)))
        for n in (1, 2, 4)
        for repeat in range(3)
    ]
    assert call(["scale", "--json", *folders]) == 0
    told = json.loads(capsys.readouterr().out)
    (at_8, at_16) = told["ranges"]["Amdahl"]
    assert (at_8["ranks"], at_16["ranks"]) == (8, 16)
    assert at_8["low"] < at_8["value"] < at_8["high"]
    assert call(["scale", *folders]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Amdahl"))
    assert f"{at_8['value']:,.0f} ({at_8['low']:,.0f} to {at_8['high']:,.0f})" in line


def test_what_cannot_be_done_with_run_folders_is_not_ignored(tmp_path, capsys):
    folders = [str(recorded(tmp_path / str(n), n)) for n in (1, 2)]
    unused = [["--batch", "8"], ["--batch-of", "all"], ["--ddp"], ["--per-node", "2"], ["--dry-run"], ["--time", "1h"]]
    for words in (*unused, ["--runs-only"]):
        assert call(["scale", *words, *folders]) == 2
        assert f"{words[0]} does nothing here" in capsys.readouterr().err


@pytest.mark.parametrize("is_there", [True, False])
def test_a_folder_without_a_run_is_named(tmp_path, capsys, is_there):
    other = tmp_path / "other"
    if is_there:
        other.mkdir()
    run = str(recorded(tmp_path / "1", 1))
    for words in ([run, str(other)], [str(other), run]):
        assert call(["scale", *words]) == 2
        said = capsys.readouterr().err
        assert (f"{other} is no run folder" if is_there else f"There is no {other}") in said


class Device:
    """Holds so many samples; `peak` bytes a sample on top of a hundred are seen from outside."""

    def __init__(self, holds, *, peak=None, bound="memory"):
        self.holds, self.peak, self.bound, self.tried = holds, peak, bound, []

    def trial(self, size):
        self.tried.append(size)
        peak = None if self.peak is None else 100 + self.peak * size
        return Trial(fits=size <= self.holds, peak_bytes=peak, bound=self.bound)


def found_on(device, room=10**12):
    return largest_batch(Search(device.trial, room, lambda line: None))


@pytest.mark.parametrize(("holds", "least"), [(8, 8), (20, 18), (100, 90), (1000, 896), (5, 5), (1, 1)])
def test_the_largest_batch_is_found_to_an_eighth(holds, least):
    device = Device(holds)
    assert least <= found_on(device) <= holds
    assert len(device.tried) <= 2 + 2 * len(bin(holds))


def test_nothing_that_fits_is_said():
    with pytest.raises(TopoutError, match="Not even a batch of one"):
        found_on(Device(0))


def test_on_a_cpu_nothing_is_run_that_would_not_fit():
    """Room for 1,100 bytes: a hundred and a hundred samples of ten."""
    device = Device(10**9, peak=10)
    assert 88 <= found_on(device, room=1_100) <= 100
    assert max(device.tried) <= 100


def test_the_largest_batch_for_strong_scaling_divides_at_every_point():
    assert that_divides(20, [1, 2, 8]) == 16
    assert that_divides(20, [2, 3]) == 18
    with pytest.raises(TopoutError, match="does not divide among 64"):
        that_divides(20, [1, 64])


@pytest.mark.parametrize(("ranks", "per_node", "nodes"), [(1, 4, 1), (4, 4, 1), (8, 4, 2), (6, 4, 2), (3, 2, 3)])
def test_ranks_fill_a_node_before_the_next_one_is_taken(ranks, per_node, nodes):
    assert nodes_for(ranks, per_node) == nodes


def test_a_point_takes_part_of_the_job_around_it():
    job = Allocation(scheduler="slurm", job_id="1", hosts=("n1", "n2"), num_tasks=8, tasks_per_host=(4, 4))
    assert [options_inside(job, ranks, None) for ranks in (1, 4, 8)] == [["--nodes", n] for n in "112"]
    one_each = Allocation(scheduler="slurm", job_id="1", hosts=("n1", "n2"))
    assert [options_inside(one_each, ranks, None) for ranks in (1, 2, 4)] == [["--nodes", n] for n in "122"]
    with pytest.raises(TopoutError, match="16 ranks do not fit into this job"):
        options_inside(job, 16, None)
    assert options_inside(None, 4, None) == options_inside(None, 4, 4) == []
    with pytest.raises(TopoutError, match="4 ranks do not fit on this host"):
        options_inside(None, 4, 2)


def test_a_count_that_this_host_cannot_hold_is_refused_before_anything_runs(tmp_path, capsys, monkeypatch):
    host = Host(name="n1", cores=(Core(index=0, physical=0, socket=0, numa=0),), memory_bytes=1 << 30)
    monkeypatch.setattr("topout.study.placement.read_host", lambda: host)
    runs = tmp_path / "runs"
    assert call(["scale", "--ranks", "1,256,257", "--repeats", "1", "--runs", str(runs), SCRIPT]) == 2
    said = capsys.readouterr().err
    assert said.startswith("257 ranks do not fit on n1.\n  why  it has 1 cores; topout starts at most 256 ranks here\n")
    assert "leave out --ranks 257" in said
    assert not runs.exists()
    # what another host of a job holds is not known here
    job = Allocation(scheduler="slurm", job_id="1", hosts=("n2",))
    assert options_inside(job, 257, None) == []


@pytest.mark.parametrize(
    ("runs", "why"), [("/dev/null", "/dev/null is no folder."), ("file/a/b", "file is no folder.")]
)
def test_without_a_place_for_run_folders_nothing_runs(tmp_path, capsys, monkeypatch, runs, why):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "train.py").write_text("open('ran', 'w')\n")
    assert call(["scale", "--ranks", "1,2", "--repeats", "1", "--runs", runs, "train.py"]) == 3
    said = capsys.readouterr().err
    assert f"No run folder can be made in {runs}." in said and why in said
    assert not (tmp_path / "ran").exists()


def test_a_place_that_may_not_be_written_to_is_none_for_run_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(scaling_runs.os, "access", lambda path, mode: False)
    with pytest.raises(TopoutError, match="No run folder can be made") as error:
        start_run(Point(1, None), [], ["train.py"], tmp_path / "runs")
    assert error.value.why == f"Nothing can be written to {tmp_path}."


def test_a_run_that_went_well_and_left_no_folder_is_not_said_to_have_failed(tmp_path, monkeypatch):
    Launched(monkeypatch, tmp_path / "runs", [])
    account = Account(lambda line: None)
    assert run_point(Point(2, None), [], ["train.py"], tmp_path / "runs", account) is None
    assert account.left_out == [f"2 ranks left no run folder in {tmp_path / 'runs'}"]


def test_one_rank_of_a_larger_job_is_meant_in_a_study_and_only_where_it_was_started_once(monkeypatch):
    job = Allocation(scheduler="slurm", job_id="1", hosts=("n1", "n2"), num_tasks=2)
    task = Task(rank=0, world_size=2, local_rank=0)
    with pytest.raises(TopoutError, match="This job has 2 tasks"):
        check_world(job, 1)
    monkeypatch.setenv("TOPOUT_PART_OF_JOB", "1")
    check_world(job, 1)
    with pytest.raises(TopoutError, match="This job has 2 tasks"):
        check_world(Allocation(scheduler="slurm", job_id="1", hosts=("n1", "n2"), task=task), 1)


def test_a_study_that_was_started_for_every_rank_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("PMIX_NAMESPACE", "1")
    for name, value in {"RANK": "1", "SIZE": "2", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    assert call(["scale", "--ranks", "1,2", SCRIPT]) == 2
    assert "topout scale was started 2 times" in capsys.readouterr().err


def test_strong_and_weak_are_run_with_the_batch_set_in_the_loaders(tmp_path, capsys):
    words = ["--ranks", "1,2", "--mode", "both", "--batch", "8", "--repeats", "1", "--runs", str(tmp_path / "runs")]
    assert call(["scale", *words, "--json", SCRIPT]) == 0
    studies = json.loads(capsys.readouterr().out)["studies"]
    assert [[point["batch"] for point in study["points"]] for study in studies] == [[8, 4], [8, 8]]
    assert len(list((tmp_path / "runs").glob("*/run.json"))) == 3


def test_a_batch_that_no_loader_took_ends_the_study(tmp_path, capsys):
    words = ["--ranks", "1,2", "--batch", "8", "--repeats", "1", "--runs", str(tmp_path / "runs")]
    assert call(["scale", *words, SCRIPT, "batch_sampler"]) == 2
    assert "has a batch_sampler of its own" in capsys.readouterr().err


def test_the_largest_batch_is_found_by_running_out_of_memory(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("OUT_OF_MEMORY_AT", "13")
    # 8 fits, 16 does not, 12 does: enough runs
    monkeypatch.setattr("topout.study.largest_batch.FINE", 2)
    words = ["--ranks", "1", "--runs-only", "--batch", "largest", "--repeats", "1", "--runs", str(tmp_path / "runs")]
    assert call(["scale", *words, SCRIPT]) == 0
    said = capsys.readouterr().err
    assert "Largest batch of a rank on 1 rank: 12, bound by memory" in said


def test_a_point_that_fails_is_tried_once_left_out_and_said(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(
        f"import os, sys\nif os.environ['WORLD_SIZE'] == '2': sys.exit(1)\nexec(open({SCRIPT!r}).read())\n"
    )
    words = ["--ranks", "1,2", "--repeats", "2", "--runs", str(tmp_path / "runs")]
    assert call(["scale", *words, str(script)]) == 4
    *notes, problem, why, do = capsys.readouterr().err.splitlines()
    assert "\n".join(notes).count("2 ranks failed with 1") == 1
    assert problem == "Fewer than two numbers of ranks gave a throughput for a scaling study."
    assert why.startswith("  why  2 ranks failed with 1: ") and "topout run -n RANKS SCRIPT" in do


def test_points_of_both_modes_that_all_fail_are_told_as_failures(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('no data here')\n")
    words = ["--ranks", "1,2", "--mode", "both", "--batch", "8", "--repeats", "1", "--runs", str(tmp_path / "runs")]
    assert call(["scale", *words, str(script)]) == 4
    assert "  why  1 rank failed with 1: " in capsys.readouterr().err


class Launched:
    """Stands for `topout run`: leaves these run folders, those of ours with the mark that was given."""

    def __init__(self, monkeypatch, runs, folders):
        self.runs, self.folders = runs, folders
        monkeypatch.setattr(scaling_runs.subprocess, "run", self.run)

    def run(self, command, *, env, **_):
        for name, started_at, is_ours in self.folders:
            (self.runs / name).mkdir(parents=True)
            mark = env["TOPOUT_MARK"] if is_ours else None
            content = {"job": None, "mark": mark, "started_at": f"2026-11-16T10:00:{started_at}.000+00:00"}
            (self.runs / name / "run.json").write_text(json.dumps(content))
        return CompletedProcess(command, 0, b"", b"")


@pytest.mark.parametrize(
    ("folders", "chosen"),
    [
        ([("x-1", "01", True), ("x-2", "02", False)], "x-1"),
        # started again: the newest, which is not the last by name
        ([("x-9", "01", True), ("x-10", "02", True), ("x-11", "03", False)], "x-10"),
        ([("x-1", "01", False)], None),
    ],
)
def test_a_run_of_somebody_else_is_not_taken_for_the_point_s_own(tmp_path, monkeypatch, folders, chosen):
    Launched(monkeypatch, tmp_path / "runs", folders)
    ended = start_run(Point(1, None), [], ["train.py"], tmp_path / "runs")
    assert ended.folder == (chosen and tmp_path / "runs" / chosen)


def test_a_run_keeps_the_mark_that_it_was_started_with(tmp_path, monkeypatch):
    script = tmp_path / "nothing.py"
    script.write_text("")
    monkeypatch.setattr(scaling_runs.secrets, "token_hex", lambda size: "a mark")
    ended = start_run(Point(1, None), ["--no-report"], [str(script)], tmp_path / "runs")
    assert ended.folder is not None
    assert json.loads((ended.folder / "run.json").read_text())["mark"] == "a mark"


def test_a_file_in_this_folder_does_not_stand_in_for_a_module_of_python_s(tmp_path, monkeypatch):
    script = tmp_path / "job" / "train.py"
    script.parent.mkdir()
    script.write_text("import beside\n")
    (script.parent / "beside.py").write_text("")
    (tmp_path / "json.py").write_text("raise SystemExit(7)\n")
    monkeypatch.chdir(tmp_path)
    assert start_run(Point(1, None), ["--no-report"], [str(script)], tmp_path / "runs").code == 0
