"""What scripts do and leave undone: rehearsals, missing torch, forgotten threads, broken recorders, full disks."""

import json
import re
import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from topout.schema.event import Kind
from topout.schema.run_folder import RunFolder
from topout.trace.readers.topout import read_rank

SCRIPT = REPOSITORY / "tests" / "scripts" / "habits.py"


@pytest.fixture
def run_habit(run_topout, tmp_path):
    def run(habit, *flags, ranks=1, runs=None):
        runs = runs or tmp_path / "runs"
        done = run_topout(["run", "-n", ranks, "--runs", runs, *flags, SCRIPT, habit])
        (folder,) = runs.iterdir()
        return done, RunFolder(folder), json.loads((folder / "run.json").read_text())

    return run


def num_steps(folder, rank=0):
    return len(read_rank(folder, rank).rows(Kind.STEP))


def test_a_rehearsal_ends_cleanly_after_its_steps(run_habit):
    done, folder, run = run_habit("fifty_steps", "--no-report", "--steps", "7")
    assert (done.code, run["status"]) == (0, "finished")
    assert num_steps(folder) == 7
    assert "steps" not in done.stdout


def test_a_rehearsal_of_marked_steps_ends_every_rank_after_as_many(run_habit):
    done, folder, run = run_habit("own_marks", "--no-report", "--steps", "4", ranks=2)
    assert (done.code, run["status"]) == (0, "finished"), done.stderr
    assert [num_steps(folder, rank) for rank in range(2)] == [4, 4]


def test_a_data_share_shortens_loaders_and_their_length(run_habit):
    done, folder, _ = run_habit("fifty_steps", "--no-report", "--data-share", "10%")
    assert "steps 5 of 5" in done.stdout
    assert num_steps(folder) == 5


def test_a_loader_whose_class_makes_an_iterator_of_its_own_trains_as_ever(run_habit):
    done, folder, run = run_habit("own_iterator", "--no-report", "--data-share", "50%")
    assert (done.code, done.stdout) == (0, "LAST LINE\n"), done.stderr
    assert num_steps(folder) == 12
    assert len(read_rank(folder, 0).rows(Kind.INPUT)) >= 12
    assert any("left whole" in note for note in run["notes"])


def test_a_script_without_torch_runs_with_logs_counters_and_its_own_exit_code(run_habit):
    done, folder, _ = run_habit("no_torch")
    assert done.code == 5
    assert folder.log(0, "out").read_text() == "line 0\nline 1\nline 2\n"
    assert read_rank(folder, 0).counters["file_opens"].values[-1] >= 3
    analysis = json.loads(folder.analysis_json.read_text())
    assert analysis["verdict"] is None
    assert any("step" in sentence for sentence in analysis["measures"]["not_measured"])


def test_a_script_that_never_steps_is_told_what_to_do(run_habit):
    done, folder, _ = run_habit("never_steps")
    assert done.code == 0
    assert "topout.step()" in " ".join(json.loads(folder.analysis_json.read_text())["measures"]["not_measured"])


@pytest.mark.alone
def test_whatever_was_left_running_the_end_comes_within_seconds(run_habit):
    done, _, run = run_habit("leftovers", "--no-report", ranks=2)
    assert done.code == 0, done.stderr
    last_line = float(re.search(r"LAST LINE ([\d.]+)", done.stdout)[1])
    ended = datetime.fromisoformat(run["started_at"]).timestamp() + run["duration_s"]
    assert ended - last_line < 15
    assert "steps 5 of 5" in done.stdout


def test_a_thread_that_still_trains_is_waited_for(run_habit):
    done, folder, _ = run_habit("thread_trains", "--no-report")
    assert "steps 60 of 60" in done.stdout
    assert num_steps(folder) == 60


def test_a_recorder_that_breaks_is_noted_and_training_goes_on(run_habit):
    done, folder, run = run_habit("broken_flight_recorder", "--no-report", ranks=2)
    assert done.code == 0
    assert "steps 5 of 5" in done.stdout
    assert any("flight recorder" in note for note in run["notes"])
    assert num_steps(folder) == 5


def test_marks_of_the_script_define_steps_and_spans(run_habit):
    _, folder, _ = run_habit("own_marks", "--no-report", "--filter", "noi*")
    table = read_rank(folder, 0)
    assert num_steps(folder) == 6
    assert len(table.rows(Kind.INPUT)) == 6
    assert len(table.rows(Kind.SPAN)) == 0
    assert table.value[table.rows(Kind.COUNT)].tolist() == [128] * 6


def test_a_profile_window_is_written_and_left_out_of_the_timing(run_habit):
    done, folder, _ = run_habit("slow_steps", "--profile", "10-14")
    assert done.code == 0
    assert "aten::" in folder.profile(0).read_text()
    window = json.loads(folder.analysis_json.read_text())["measures"]["window"]
    assert window["first_step"] == 16


def test_a_filter_keeps_a_profile_small(run_habit):
    _, folder, _ = run_habit("slow_steps", "--no-report", "--profile", "10-14", "--filter", "aten::*")
    events = json.loads(folder.profile(0).read_text())["traceEvents"]
    names = {event["name"] for event in events if event.get("ph") == "X"}
    assert not any(name.startswith("aten::") for name in names)
    assert any("Optimizer.step" in name for name in names)


@pytest.mark.lab
def test_a_disk_that_fills_up_ends_the_recording_and_not_the_training(run_habit, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(disk)], check=True)
    try:
        done, _, _ = run_habit("fills_the_disk", runs=disk / "runs")
        assert done.code == 0, done.stderr
        assert "steps 60 of 60" in done.stdout
        assert "No space left on device" in done.stderr
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_recorded_files_hold_no_code(tmp_path: Path):
    """Reading must never execute: no pickle anywhere in what reads a run."""
    for room in ("trace", "analyze", "recommend", "report", "verify", "cli"):
        for path in (REPOSITORY / "topout" / room).rglob("*.py"):
            assert "pickle" not in path.read_text(), path


def test_what_an_optimizer_is_given_stays_what_it_is(run_topout, tmp_path):
    """A closure is watched, but keeps its arguments and attributes; a model that can be called is left alone."""
    (tmp_path / "train.py").write_text("""
import torch
class Asking(torch.optim.SGD):
    def step(self, given=None):
        print(type(given).__name__, getattr(given, "mark", None), given(torch.ones(1)).item())
        return super().step()
def closure(x):
    return 2 * x
closure.mark = "mine"
model = torch.nn.Linear(1, 1)
torch.nn.init.ones_(model.weight), torch.nn.init.zeros_(model.bias)
optimizer = Asking(model.parameters(), 0.0)
model(torch.ones(1)).backward()
optimizer.step(closure)
optimizer.step(model)
""")
    done = run_topout(["run", "-n", 1, "--no-report", "-q", "train.py"])
    assert (done.code, done.stdout) == (0, "function mine 2.0\nLinear None 1.0\n"), done.stderr


CLOSES_ALL = """
import os, time, torch
os.closerange(3, 256)
files = [open(f"mine-{number}", "w") for number in range(12)]
child = os.fork()
if child == 0:
    for file in files:
        file.write("child\\n")
        file.flush()
    os._exit(0)
assert os.wait()[1] == 0
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(30):
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    time.sleep(0.05)
"""


def test_a_script_may_close_all_descriptors_and_use_their_numbers(run_topout, tmp_path):
    (tmp_path / "train.py").write_text(CLOSES_ALL)
    done = run_topout(["run", "-n", 1, "--no-report", "-q", "train.py"])
    assert done.code == 0, done.stderr
    assert {path.read_text() for path in tmp_path.glob("mine-*")} == {"child\n"}
    (run,) = (tmp_path / "topout-runs").iterdir()
    assert num_steps(RunFolder(run)) == 30


USES_UP = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
files = []
while True:
    try:
        files.append(open("/dev/null"))
    except OSError:
        sys.exit(3)
"""


def test_a_script_that_has_used_up_its_descriptors_leaves_with_its_own_code(run_topout, tmp_path):
    (tmp_path / "train.py").write_text(USES_UP)
    done = run_topout(["run", "-n", 1, "--no-report", "-q", "train.py"])
    assert "ended with exit code 3" in done.stderr
    (run,) = (tmp_path / "topout-runs").iterdir()
    assert read_rank(RunFolder(run), 0).facts["ended"] is True


@pytest.mark.parametrize("name", ["zlib", "types", "functools", "keyword", "threading"])
def test_a_file_beside_the_script_is_never_taken_for_a_module_of_pythons(run_topout, tmp_path, name):
    """What the recorder loads late must not come from the script's folder, which is first on the path by then."""
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / f"{name}.py").write_text("print('loaded')")
    (tmp_path / "beside" / "train.py").write_text("import time\ntime.sleep(0.3)")
    done = run_topout(["run", "-n", 1, "--no-report", "-q", "beside/train.py"])
    assert (done.code, done.stdout) == (0, ""), done.stderr
    (run,) = (tmp_path / "topout-runs").iterdir()
    assert read_rank(RunFolder(run), 0).facts["ended"] is True
    assert json.loads((run / "run.json").read_text())["notes"] == []


CHILD_TRAINS = """
import os, sys
import torch
def train(num_steps):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(num_steps):
        model(torch.ones(2)).sum().backward()
        optimizer.step()
child = os.fork()
if child == 0:
    train(5)
    os._exit(7)
print("child", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
torch.distributed.init_process_group("gloo")
train(5)
print("trained", flush=True)
"""


def test_a_forked_child_may_train_alone_and_as_long_as_it_likes(run_topout, tmp_path):
    (tmp_path / "train.py").write_text(CHILD_TRAINS)
    done = run_topout(["run", "-n", 2, "--steps", 3, "--no-report", "-q", "train.py"])
    assert (done.code, done.stdout) == (0, "child 7\n"), done.stderr


NO_BACKWARD = """
import torch, topout
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(8, 1)
parameters = list(model.parameters())
training, held_out = (DataLoader(TensorDataset(torch.randn(num, 8)), batch_size=4) for num in (48, 8))
for epoch in range(2):
    for (batch,) in training:
        gradients = torch.autograd.grad(model(batch).square().mean(), parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients):
                parameter -= 0.01 * gradient
        topout.step()
    for (batch,) in held_out:
        model(batch)
"""


def test_marked_steps_without_a_backward_train_and_a_loader_between_them_evaluates(run_topout, tmp_path):
    (tmp_path / "train.py").write_text(NO_BACKWARD)
    done = run_topout(["run", "--runs", tmp_path / "runs", "train.py"])
    assert done.code == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    measures = json.loads((folder / "analysis.json").read_text())["measures"]
    assert measures["shares"]["forward"] > 0 and measures["shares"]["evaluation"] > 0
    assert measures["step"]["samples_per_step"] == pytest.approx(4)
    assert (measures["input"]["batch_size"], measures["input"]["num_workers"]) == (4, 0)
