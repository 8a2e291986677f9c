"""`topout plan` as typed: the line that asks names what the run ran, and a what-if that changes nothing is said."""

import shlex
from dataclasses import replace

import pytest

from tests.tables import Plan, StepPlan, build_run
from topout.cli.main import call
from topout.cli.plan_request import Planned, left_to_script, options_of, request
from topout.study.description import Ranged, read_job, read_system
from topout.study.plan import Choice, Deadline
from topout.study.plan import Plan as Planning

MS = 1_000_000


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def planned(tmp_path, capsys, run, *words, batches=1, evaluation=0, **facts):
    """The line that asks for a run of two ranks on a host, with batches of 32."""
    plain = StepPlan(forward=20 * MS, backward=40 * MS, optimizer=MS, samples=32, batches=batches)
    steps = [*[plain] * 15, replace(plain, evaluation=evaluation), *[plain] * 14]
    facts = {"batch_size": 32, **facts}
    plan = Plan(run=run, facts=facts, evaluation_by="loader")
    folder = build_run(tmp_path / "run", [steps, steps], plan).folder
    assert call(["calibrate", str(folder.path)]) == 0
    system = str(folder.path / "calibration.json")
    capsys.readouterr()
    assert call(["plan", str(folder.path), "--system", system, "--samples", "1e6", "--nodes", "1", *words]) == 0
    return next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Next    "))


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"spec": {"script": "fit.py", "args": ["--lr", "0.1", "a b"], "is_module": False}}, " fit.py --lr 0.1 'a b'"),
        ({"spec": {"script": "package.fit", "args": [], "is_module": True}}, " -m package.fit"),
        ({"spec": {"script": "-odd.py"}}, " -- -odd.py"),
        ({"spec": {"script": "/x/digits.py"}, "origins": {"script": "embedded default"}}, ""),
        ({"spec": {"script": "fit.py", "ddp": True}}, " --ddp fit.py"),
        ({}, " train.py"),
        ({"spec": {"script": None}}, " train.py"),
        ({"spec": "damaged"}, " train.py"),
    ],
)
def test_the_request_names_the_script_of_the_run(tmp_path, capsys, run, words):
    line = planned(tmp_path, capsys, run)
    assert line.partition(":00")[0].startswith("Next    topout submit --nodes 1 --time ")
    assert line.rpartition(":00")[2] == words


TOLD = {"batch": 256, "packs": ["/data/train=/packs/a b"], "onednn_backward": False, "keep_memory": True}


@pytest.mark.parametrize(
    ("spec", "origin", "words"),
    [
        (
            TOLD,
            "command line",
            " --batch 256 --packs '/data/train=/packs/a b' --no-onednn-backward --keep-memory fit.py",
        ),
        (TOLD, "topout.toml:3", " fit.py"),
        ({"num_ranks": 2}, "command line", " --per-node 2 fit.py"),
        ({"per_node": "numa"}, "command line", " --per-node 2 fit.py"),
        # of all ranks, and does not divide among other nodes
        ({"num_ranks": 2}, "topout.toml:3", " --per-node 2 fit.py"),
        ({"steps": 200, "data_share": 0.02, "num_ranks": None}, "command line", " fit.py"),
    ],
)
def test_the_request_has_what_the_run_was_told_and_no_file_says_again(tmp_path, capsys, spec, origin, words):
    run = {"spec": {"script": "fit.py", **spec}, "origins": dict.fromkeys(spec, origin)}
    assert planned(tmp_path, capsys, run).rpartition(":00")[2] == words


def test_the_request_says_the_ranks_where_nodes_have_no_gpus(tmp_path, capsys):
    run = {"spec": {"script": "fit.py"}}
    for folder, facts, words in (
        ("cpu", {"torch_version": "2.9"}, " --per-node 2 fit.py"),
        ("gpu", {"device_name": "NVIDIA H200"}, " fit.py"),
    ):
        assert planned(tmp_path / folder, capsys, run, **facts).rpartition(":00")[2] == words
    assert call(["plan", "resnet50-v100", "--system", "stampede2-skx", "--samples", "1e6", "--nodes", "1"]) == 0
    assert capsys.readouterr().out.endswith(" --per-node 1 train.py\n")


@pytest.mark.parametrize(
    ("what_if", "batches", "words"),
    [
        ("input.samples=128", 1, " --batch 128 fit.py"),
        # 4 batches of 32 are a step
        ("input.samples=256", 4, " --batch 64 fit.py"),
        ("input.samples=32", 1, " --batch 16 fit.py"),
        ("ranks_per_node=4", 1, " --per-node 4 --batch 16 fit.py"),
    ],
)
def test_the_request_has_what_a_what_if_changed(tmp_path, capsys, what_if, batches, words):
    run = {"spec": {"script": "fit.py", "batch": 16}, "origins": {"batch": "command line"}}
    line = planned(tmp_path, capsys, run, "--what-if", what_if, batches=batches)
    assert line.rpartition(":00")[2] == words


def test_a_mesh_that_was_planned_with_says_its_own_batch():
    run = {"spec": {"batch": 16, "ddp": True}, "origins": {"batch": "command line"}}
    same = Planned(read_job("resnet50-v100"), read_system("summit"))
    of = {is_mesh: options_of(run, same, same, 16, is_mesh=is_mesh) for is_mesh in (False, True)}
    assert of == {False: ["--batch", "16", "--ddp"], True: ["--ddp"]}


def test_submit_takes_the_line_as_it_stands(tmp_path, capsys):
    (tmp_path / "fit.py").write_text("")
    told = {"batch": 256, "onednn_backward": False, "keep_memory": True, "num_ranks": 2}
    run = {"spec": {"script": "fit.py", **told}, "origins": dict.fromkeys(told, "command line")}
    program, verb, *words = shlex.split(planned(tmp_path, capsys, run).removeprefix("Next"))
    assert (program, verb) == ("topout", "submit")
    assert call([verb, "--dry-run", "--scheduler", "slurm", *words]) == 0
    assert "--per-node 2 --batch 256 --no-onednn-backward --keep-memory" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("deadline", "is_kept", "time"),
    [
        (None, False, "28:48:00"),
        (24, True, "24:00:00"),
        (26.51, True, "26:30:36"),
        (48, True, "28:48:00"),
        (24, False, "28:48:00"),
    ],
)
def test_the_time_asked_for_is_not_beyond_a_deadline_that_is_kept(deadline, is_kept, time):
    one = Choice(nodes=8, batch=64, hours=20, low_hours=18, high_hours=24, node_hours=160, efficiency=1.0)
    found = Planning(
        choices=[one], fastest=one, cheapest=one, best_value=one, notes=[], within=one if is_kept else None
    )
    line = request(found, deadline=Deadline(hours=deadline) if deadline else None)
    assert line == f"topout submit --nodes 8 --time {time} train.py"


def test_a_deadline_reaches_the_line(tmp_path, capsys):
    # 15,625 steps of 61 ms are 16 minutes, and a fifth more 19
    line = planned(tmp_path, capsys, {"spec": {"script": "fit.py"}}, "--within", "18m", "--certainty", "0.5")
    assert line == "Next    topout submit --nodes 1 --time 0:18:00 fit.py"


def test_the_page_explains_train_py_only_where_it_stands_for_another(tmp_path, capsys):
    page = tmp_path / "plan.html"
    planned(tmp_path, capsys, {"spec": {"script": "fit.py"}}, "--html", str(page))
    assert "fit.py" in page.read_text() and "stands for your script" not in page.read_text()
    assert call(["plan", "resnet50-v100", "--system", "summit", "--samples", "1e6", "--nodes", "1,2",
                 "--html", str(page)]) == 0  # fmt: skip
    assert "stands for your script" in page.read_text()


@pytest.mark.parametrize(
    ("facts", "words"),
    [({"takes_batch": True}, " --batch 128 fit.py"), ({"takes_batch": False}, " fit.py"), ({}, " fit.py")],
)
def test_a_batch_is_asked_for_where_the_loader_would_take_it(tmp_path, capsys, facts, words):
    """Else the job would end after its first step; which loaders an evaluation has does not matter."""
    line = planned(
        tmp_path, capsys, {"spec": {"script": "fit.py"}}, "--what-if", "input.samples=128", evaluation=MS, **facts
    )
    assert line.rpartition(":00")[2] == words


def test_a_batch_that_topout_cannot_set_is_left_to_the_script():
    job = read_job("resnet50-v100")
    larger = Ranged(replace(job.value, input=replace(job.value.input, samples=512)), {})
    assert left_to_script({"spec": {}}, job, larger, ["--batch", "512"]) == []
    (note,) = left_to_script({"spec": {}}, job, larger, [])
    assert "the script's to set" in note


def test_a_what_if_that_is_so_already_is_said(capsys):
    words = ["plan", "resnet50-v100", "--system", "summit", "--samples", "1e6", "--nodes", "1,2"]
    assert call([*words, "--what-if", "input.samples=256"]) == 0
    assert "Note    --what-if input.samples=256 changes nothing: it is so already." in capsys.readouterr().err
