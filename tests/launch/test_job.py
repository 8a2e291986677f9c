"""Whole jobs of two and three ranks: how they end, what is printed last, what is left in the folder."""

import json
import os
import signal
import stat
import time
from pathlib import Path

import pytest

from tests.launch.jobs import ANNOUNCE, await_pid, is_running, start, state, wait_for

pytestmark = pytest.mark.alone

RANK_1 = "import os, sys, time\nif os.environ['RANK'] == '1':\n    time.sleep(0.3)\n    "
THEN_SLEEP = "\ntime.sleep(60)\n"


def only_run(folder: Path) -> Path:
    (run,) = (folder / "topout-runs").iterdir()
    return run


def run_json(folder: Path) -> dict:
    return json.loads((only_run(folder) / "run.json").read_text())


def test_each_rank_has_its_log_and_rank_0_the_terminal(launch, tmp_path):
    ended = launch(
        "import os, sys\nr = os.environ['RANK']\nprint('out', r, sys.argv[1:])\nprint('err', r, file=sys.stderr)",
        "--lr", "0.1", "-n", "5", "--help", "--",
        options=("-n", "2"),
    )  # fmt: skip
    assert ended.code == 0
    assert ended.stdout == "out 0 ['--lr', '0.1', '-n', '5', '--help', '--']\n"
    assert "err 0" in ended.stderr
    assert "err 1" not in ended.stderr
    logs = only_run(tmp_path) / "logs"
    assert (logs / "rank-00001.out").read_text() == "out 1 ['--lr', '0.1', '-n', '5', '--help', '--']\n"
    assert (logs / "rank-00001.err").read_text() == "err 1\n"


def test_run_json_tells_what_was_asked_and_how_it_ended(launch, tmp_path):
    assert launch("print('hello')", "a", options=("-n", "2", "--steps", "3")).code == 0
    run = run_json(tmp_path)
    assert (run["version"], run["status"], run["exit_code"]) == (1, "finished", 0)
    assert run["command"][:3] == ["topout", "run", "--no-report"]
    assert (run["spec"]["script"], run["spec"]["args"], run["spec"]["steps"]) == ("train.py", ["a"], 3)
    assert (run["origins"]["steps"], run["origins"]["data_share"]) == ("command line", "default")
    assert [(entry["rank"], entry["exit_code"], entry["signal"]) for entry in run["ranks"]] == [
        (0, 0, None),
        (1, 0, None),
    ]
    assert run["hosts"][0]["num_cores"] >= 1
    assert run["duration_s"] > 0


def test_the_first_traceback_is_the_last_thing_printed(launch, tmp_path):
    ended = launch(RANK_1 + "raise ValueError('bad batch')" + THEN_SLEEP, options=("-n", "3"))
    assert ended.code == 1
    assert ended.stderr.endswith("ValueError: bad batch\n")
    assert "Rank 1 on " in ended.stderr
    assert (only_run(tmp_path) / "first_failure.txt").read_text().endswith("ValueError: bad batch\n")
    assert run_json(tmp_path)["status"] == "failed"


def test_a_peer_that_lost_its_connection_is_not_blamed(launch):
    script = """
import os, time
# rank 1 fails first and takes a while to end, so that rank 0 is the first to be gone
if os.environ["RANK"] == "0":
    while not os.path.exists("failed"):
        time.sleep(0.02)
    raise RuntimeError("Connection closed by peer [127.0.0.1]:5")
import atexit
atexit.register(lambda: (open("failed", "w"), time.sleep(2)))
raise ValueError("the cause")
"""
    ended = launch(script, options=("-n", "2"))
    assert ended.stderr.endswith("ValueError: the cause\n")


def test_the_scripts_own_exit_code_is_kept(launch, tmp_path):
    ended = launch(RANK_1 + "print('bye', file=sys.stderr); sys.exit(7)" + THEN_SLEEP, options=("-n", "2"))
    assert ended.code == 7
    assert "ended with exit code 7" in ended.stderr
    assert ended.stderr.endswith("    bye\n")
    assert [entry["exit_code"] for entry in run_json(tmp_path)["ranks"]][1] == 7


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGSEGV"])
def test_death_by_signal_is_named_and_is_exit_code_4(launch, tmp_path, name):
    ended = launch(RANK_1 + f"import signal; os.kill(os.getpid(), signal.{name})" + THEN_SLEEP, options=("-n", "2"))
    assert ended.code == 4
    last_words = ended.stderr[ended.stderr.rindex("Rank 1 on ") :].splitlines()
    assert last_words[0].endswith(f"died by {name}.")
    assert [line[:6] for line in last_words[1:3]] == ["  why ", "  do  "]
    assert run_json(tmp_path)["ranks"][1]["signal"] == getattr(signal, name)


def test_a_script_that_does_not_compile_says_where(launch):
    ended = launch("print(1\nx = = 2\n", options=("-n", "2"))
    assert ended.code == 1
    assert "SyntaxError" in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_launcher_ends_all_ranks(tmp_path, number, code):
    job = start(tmp_path, ANNOUNCE + "time.sleep(60)", "-n", "2")
    pids = [await_pid(tmp_path, rank) for rank in range(2)]
    job.send_signal(number)
    _, err = job.communicate(timeout=30)
    assert job.returncode == code
    assert f"interrupted by {number.name}" in err
    assert not any(is_running(pid) for pid in pids)
    assert run_json(tmp_path)["status"] == "interrupted"


def test_ranks_do_not_outlive_a_killed_launcher(tmp_path):
    job = start(tmp_path, ANNOUNCE + "time.sleep(60)", "-n", "2")
    pids = [await_pid(tmp_path, rank) for rank in range(2)]
    job.kill()
    job.communicate(timeout=30)
    assert wait_for(lambda: not any(is_running(pid) for pid in pids))


def test_a_stopped_rank_is_named_and_ends_the_job(tmp_path):
    job = start(
        tmp_path, ANNOUNCE + "time.sleep(60)", "-n", "2", TOPOUT_HANG_NAMED_S="0.5", TOPOUT_STOPPED_LIMIT_S="1.5"
    )  # fmt: skip
    pids = [await_pid(tmp_path, rank) for rank in range(2)]
    os.kill(pids[1], signal.SIGSTOP)
    _, err = job.communicate(timeout=30)
    assert job.returncode == 4
    assert f"rank 1 on {run_json(tmp_path)['hosts'][0]['name']} (pid {pids[1]}) is stopped" in err
    assert f"(pid {pids[1]}) was stopped and nobody continued it." in err
    # it was continued to be ended
    assert "goes on" not in err
    assert not any(is_running(pid) for pid in pids)


def test_a_stopped_rank_that_is_continued_is_forgiven(tmp_path):
    job = start(tmp_path, ANNOUNCE + "time.sleep(3)", TOPOUT_HANG_NAMED_S="0.3", TOPOUT_STOPPED_LIMIT_S="30")
    pid = await_pid(tmp_path, 0)
    os.kill(pid, signal.SIGSTOP)
    assert job.stderr is not None
    assert "is stopped" in job.stderr.readline()
    os.kill(pid, signal.SIGCONT)
    job.communicate(timeout=30)
    assert job.returncode == 0


def test_ctrl_z_stops_the_job_and_continuing_it_goes_on(tmp_path):
    job = start(tmp_path, ANNOUNCE + "time.sleep(2)", TOPOUT_HANG_NAMED_S="0.3", TOPOUT_STOPPED_LIMIT_S="0.6")
    pid = await_pid(tmp_path, 0)
    job.send_signal(signal.SIGTSTP)
    assert wait_for(lambda: state(job.pid) == state(pid) == "T")
    job.send_signal(signal.SIGCONT)
    _, err = job.communicate(timeout=30)
    assert job.returncode == 0
    assert "is stopped" not in err


LEAVES_SLOWLY = """
import atexit
def leave():
    announce("leaving")
    for _ in range(25):
        time.sleep(0.1)
    announce("left")
atexit.register(leave)
"""


@pytest.mark.parametrize("is_by_terminal", [True, False], ids=["Ctrl-Z", "a scheduler that suspends"])
def test_a_job_that_was_stopped_while_it_left_leaves_as_it_would_have(tmp_path, is_by_terminal):
    job = start(tmp_path, ANNOUNCE + LEAVES_SLOWLY, "-n", "1")
    rank = await_pid(tmp_path, "leaving")
    stopped = [job.pid] if is_by_terminal else [rank, job.pid]
    for pid in stopped:
        os.kill(pid, signal.SIGTSTP if is_by_terminal else signal.SIGSTOP)
    assert wait_for(lambda: state(job.pid) == "T")
    time.sleep(6)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    job.communicate(timeout=30)
    assert (tmp_path / "pid-left").exists()
    assert job.returncode == 0


def test_an_unwritable_run_folder_does_not_stop_training(launch, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "elsewhere").mkdir()
    ended = launch("print('trained')", options=("--runs", "file/runs"), env={"TMPDIR": str(tmp_path / "elsewhere")})
    assert (ended.code, ended.stdout) == (0, "trained\n")
    assert "no run folder in" in ended.stderr
    assert "Not a directory" in ended.stderr
    own = tmp_path / f"elsewhere/topout-runs-{os.getuid()}"
    assert len(list(own.glob("*/run.json"))) == 1
    assert stat.S_IMODE(own.stat().st_mode) == 0o700


def test_a_temporary_folder_of_somebody_else_is_left_alone(launch, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "others").mkdir()
    (tmp_path / f"topout-runs-{os.getuid()}").symlink_to("others")
    ended = launch("print('trained')", options=("--runs", "file/runs"), env={"TMPDIR": str(tmp_path)})
    assert (ended.code, ended.stdout) == (0, "trained\n")
    assert "it belongs to somebody else" in ended.stderr
    assert list((tmp_path / "others").iterdir()) == []


def test_no_folder_at_all_does_not_stop_training(tmp_path, monkeypatch, capfd):
    from topout.launch import job, run_record
    from topout.schema.spec import RunSpec

    def full_disk(path, content, **_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_record, "write_whole", full_disk)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "train.py").write_text("print('trained')")
    spec = RunSpec(script=str(tmp_path / "train.py"), num_ranks=1, runs=str(tmp_path / "runs"))
    result = job.run_job(spec, job.Terminal())
    out, err = capfd.readouterr()
    assert (result.exit_code, result.folder, out) == (0, None, "trained\n")
    assert "No space left on device" in err
    assert "nothing of this run is kept" in err
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_folder_that_vanishes_during_the_run_is_warned_of_once(launch):
    # the launcher may put a file there at the same moment
    gone = "while os.path.exists('topout-runs'):\n    shutil.rmtree('topout-runs', ignore_errors=True)\n"
    script = f"import os, shutil, time\nprint('a')\n{gone}time.sleep(1.5)\nprint('trained')\n"
    ended = launch(script, options=("-n", "1"))
    assert (ended.code, ended.stdout) == (0, "a\ntrained\n")
    assert ended.stderr.count("cannot be written any more") == 1


def test_much_output_of_all_ranks_blocks_nobody(launch, tmp_path):
    ended = launch("import sys\nfor _ in range(2000):\n    sys.stdout.write('x' * 1000)\n", options=("-n", "2"))
    assert ended.code == 0
    assert len(ended.stdout) == 2_000_000
    assert (only_run(tmp_path) / "logs/rank-00001.out").stat().st_size == 2_000_000


def test_a_report_of_bindings_can_be_asked_for_in_topout_toml(launch, tmp_path):
    (tmp_path / "topout.toml").write_text('[run]\nbind = "core,report"\n')
    assert "rank" in launch("pass", options=("-n", "1", "-q")).stderr
    (tmp_path / "topout.toml").write_text('[run]\nbind = "core"\n')
    assert launch("pass", options=("-n", "1", "-q")).stderr == ""


@pytest.mark.parametrize("text", ["²", "--5", "some"])
def test_a_number_of_ranks_that_is_none_is_refused(launch, text):
    ended = launch("pass", options=("--per-node", text))
    assert ended.code == 2
    assert "is not known" in ended.stderr


def test_topout_toml_is_read_and_flags_win(launch, tmp_path):
    (tmp_path / "topout.toml").write_text("[run]\nnum_ranks = 2\nsteps = 4\n")
    assert launch("import os; print(os.environ['WORLD_SIZE'])", options=("--steps", "9")).stdout == "2\n"
    run = run_json(tmp_path)
    assert (run["spec"]["steps"], run["origins"]["steps"]) == (9, "command line")
    assert (run["spec"]["num_ranks"], run["origins"]["num_ranks"]) == (2, "topout.toml:2")
