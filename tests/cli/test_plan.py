"""`topout plan` as typed: the line that asks names what the run ran, and a what-if that changes nothing is said."""

import pytest

from tests.tables import Plan, StepPlan, build_run
from topout.cli.main import call

MS = 1_000_000


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def planned(tmp_path, capsys, run, *words):
    steps = [StepPlan(forward=20 * MS, backward=40 * MS, optimizer=MS, samples=32)] * 30
    folder = build_run(tmp_path / "run", [steps, steps], Plan(run=run)).folder
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


def test_the_page_explains_train_py_only_where_it_stands_for_another(tmp_path, capsys):
    page = tmp_path / "plan.html"
    planned(tmp_path, capsys, {"spec": {"script": "fit.py"}}, "--html", str(page))
    assert "fit.py" in page.read_text() and "stands for your script" not in page.read_text()
    assert call(["plan", "resnet50-v100", "--system", "summit", "--samples", "1e6", "--nodes", "1,2",
                 "--html", str(page)]) == 0  # fmt: skip
    assert "stands for your script" in page.read_text()


def test_a_what_if_that_is_so_already_is_said(capsys):
    words = ["plan", "resnet50-v100", "--system", "summit", "--samples", "1e6", "--nodes", "1,2"]
    assert call([*words, "--what-if", "input.samples=256"]) == 0
    assert "Note    --what-if input.samples=256 changes nothing: it is so already." in capsys.readouterr().err
