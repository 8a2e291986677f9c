"""The same `topout run train.py` on two nodes, whichever way it is started: it trains, and no failure stays unnamed."""

import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.lab import ways
from tests.lab.cluster import Slurm
from tests.launch.jobs import is_running, wait_for

pytestmark = pytest.mark.lab
SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
TRAIN = SCRIPTS / "two_hosts.py"


def only_run(folder: Path) -> dict:
    (run,) = (folder / "topout-runs").iterdir()
    return json.loads((run / "run.json").read_text())


def pid_of(folder: Path, rank: int) -> tuple[int, str]:
    """Process number and host of a rank that has begun to train."""
    path = folder / f"pid-{rank}"
    assert wait_for(lambda: path.exists() and len(path.read_text().split()) == 2, 60), f"rank {rank} did not start"
    pid, host = path.read_text().split()
    return int(pid), host


@pytest.mark.parametrize("way", ways.WAYS)
def test_a_script_trains_on_both_nodes(slurm: Slurm, tmp_path: Path, way: str) -> None:
    ended = ways.run(way, slurm, tmp_path, "run", "--no-report", TRAIN)
    assert ended.returncode == 0, ended
    assert "rank 0 of 2 on n1: loss" in ended.stdout
    run = only_run(tmp_path)
    assert run["status"] == "finished"
    assert [(host["name"], host["address"], host["interface"]) for host in run["hosts"]] == [
        ("n1", "10.77.0.1", "eth0"),
        ("n2", "10.77.0.2", "eth0"),
    ]
    assert [(rank["host"], rank["exit_code"]) for rank in run["ranks"]] == [("n1", 0), ("n2", 0)]
    (folder,) = (tmp_path / "topout-runs").iterdir()
    on_second = (folder / "logs/rank-00001.out").read_text()
    assert on_second.split("loss")[1] == ended.stdout.split("loss")[1]


@pytest.mark.parametrize("way", ways.WAYS)
def test_the_first_traceback_is_the_last_word_whichever_node_it_comes_from(
    slurm: Slurm, tmp_path: Path, way: str
) -> None:
    ended = ways.run(way, slurm, tmp_path, "run", "--no-report", TRAIN, 1000, "fail:1")
    assert ended.returncode != 0
    assert "Rank 1 on n2 failed first" in ended.stderr
    assert "ValueError: planted" in ended.stderr
    assert "Rank 0" not in ended.stderr
    assert only_run(tmp_path)["exit_code"] == 1


@pytest.mark.parametrize("way", ways.SLURM)
def test_a_killed_rank_ends_the_job_on_all_nodes(slurm: Slurm, tmp_path: Path, way: str) -> None:
    process = ways.start(way, slurm, tmp_path, "run", "--no-report", TRAIN, 1_000_000)
    pids = [pid_of(tmp_path, rank)[0] for rank in range(2)]
    os.kill(pids[1], signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)
    assert "Rank 1 on n2" in stderr
    assert "died by SIGKILL" in stderr
    assert not any(map(is_running, pids))


@pytest.mark.parametrize("way", ways.SLURM)
def test_a_lost_node_is_named_and_the_rest_ended(slurm: Slurm, tmp_path: Path, way: str) -> None:
    process = ways.start(way, slurm, tmp_path, "run", "--no-report", TRAIN, 1_000_000)
    first, _ = pid_of(tmp_path, 0)
    pid_of(tmp_path, 1)
    slurm.kill_node(slurm.nodes[1])
    _, stderr = process.communicate(timeout=90)
    assert "n2" in stderr
    assert "lost the host" in stderr or "died by SIGKILL" in stderr
    assert wait_for(lambda: not is_running(first))


def test_a_cut_link_ends_the_job_and_names_the_host(slurm: Slurm, tmp_path: Path) -> None:
    process = ways.start("once in an allocation", slurm, tmp_path, "run", "--no-report", TRAIN, 1_000_000)
    pids = [pid_of(tmp_path, rank)[0] for rank in range(2)]
    slurm.nodes[1].set_link(up=False)
    _, stderr = process.communicate(timeout=120)
    assert "n2" in stderr
    assert wait_for(lambda: not any(map(is_running, pids)), 90)


def test_a_terminal_that_nobody_reads_for_half_a_minute_ends_no_job(slurm: Slurm, tmp_path: Path) -> None:
    """A pager, or Ctrl-S: the launcher that leads goes on listening to the others, whose connections would break."""
    script = tmp_path / "prints.py"
    script.write_text(
        "import os, pathlib, time\n"
        "if os.environ['RANK'] == '0':\n"
        "    for number in range(80_000):\n"
        "        print(f'line {number:50}')\n"
        "time.sleep(30)\n"
        "pathlib.Path('trained-' + os.environ['RANK']).touch()\n"
    )
    process = ways.start("once in an allocation", slurm, tmp_path, "run", "--no-report", script)
    assert wait_for(lambda: all((tmp_path / f"trained-{rank}").exists() for rank in range(2)), 60)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert stdout.splitlines() == [f"line {number:50}" for number in range(80_000)]


def test_a_job_of_several_tasks_with_a_world_of_one_is_an_error(slurm: Slurm, tmp_path: Path) -> None:
    ended = ways.run("srun for every rank", slurm, tmp_path, "run", "-n", 1, "--no-report", TRAIN)
    assert ended.returncode == 2
    assert "why" in ended.stderr and "do" in ended.stderr
    assert not (tmp_path / "topout-runs").exists()


def test_a_task_that_does_not_come_is_named_in_time(slurm: Slurm, tmp_path: Path) -> None:
    """The second task sleeps instead of starting topout."""
    script = tmp_path / "one_sleeps.sh"
    script.write_text(f'[ "$SLURM_PROCID" = 0 ] || exec sleep 60\nexec {" ".join(ways.TOPOUT)} "$@"\n')
    began = time.monotonic()
    ended = slurm.run(
        ["srun", "-N2", "-n2", "-K", "sh", script, "run", "--no-report", "--start-timeout", "3", TRAIN], cwd=tmp_path
    )
    assert ended.returncode != 0
    assert "1 of 2 did not arrive: tasks 1 of hosts n1, n2" in ended.stderr
    assert time.monotonic() - began < 30


def test_a_node_that_cannot_be_reached_is_named_and_nothing_stays_behind(slurm: Slurm, tmp_path: Path) -> None:
    """Its link is cut after the tasks were placed, before they look for each other."""
    script = tmp_path / "late.sh"
    script.write_text(f'touch placed-$SLURM_PROCID; sleep 2; exec {" ".join(ways.TOPOUT)} "$@"\n')
    process = slurm.popen(
        ["srun", "-N2", "-n2", "sh", script, "run", "--no-report", "--start-timeout", "5", TRAIN], cwd=tmp_path
    )
    assert wait_for((tmp_path / "placed-1").exists)
    slurm.nodes[1].set_link(up=False)
    assert wait_for(lambda: len(launchers(slurm)) >= 2), launchers(slurm)
    assert wait_for(lambda: launchers(slurm) == [], 30), launchers(slurm)
    slurm.nodes[1].set_link(up=True)
    _, stderr = process.communicate(timeout=60)
    assert "1 of 2 did not arrive: tasks 1 of hosts n1, n2" in stderr
    assert not (tmp_path / "topout-runs").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_whoever_is_ended_while_hosts_are_awaited_ends_what_was_started_there(
    slurm: Slurm, tmp_path: Path, number: int
) -> None:
    """The launcher on n2 has been started, and takes long to come."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, time\n"
        "if b'agent_process' in open('/proc/self/cmdline', 'rb').read() and os.uname().nodename == 'n2':\n"
        "    open('late', 'w').close()\n"
        "    time.sleep(60)\n"
    )
    path = os.pathsep.join([str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    words = [*ways.TOPOUT, "run", "--no-report", TRAIN]
    script = tmp_path / "go.sh"
    # the job goes on after it
    script.write_text(f"{shlex.join(map(str, words))} &\necho $! >head; wait $!; echo $? >code; sleep 60\n")
    process = slurm.popen(
        ["salloc", "-Q", "-N2", *slurm.nodes[0].prefix, "bash", script], cwd=tmp_path, env={"PYTHONPATH": path}
    )
    assert wait_for((tmp_path / "late").exists)
    os.kill(int((tmp_path / "head").read_text()), number)
    assert wait_for(lambda: (tmp_path / "code").exists() and (tmp_path / "code").read_text().strip() != "")
    assert int((tmp_path / "code").read_text()) == 128 + number
    assert wait_for(lambda: launchers(slurm) == [], 5), launchers(slurm)
    process.terminate()
    process.communicate(timeout=60)


def launchers(slurm: Slurm) -> list[str]:
    """Command lines of the topout that runs on the nodes."""
    lines = [_command(pid) for node in slurm.nodes for pid in node.processes()]
    return [line for line in lines if ("-m topout" in line and "late.sh" not in line) or "agent_process" in line]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def test_a_task_that_is_slow_to_start_is_waited_for(slurm: Slurm, tmp_path: Path) -> None:
    script = tmp_path / "one_is_late.sh"
    script.write_text(f'[ "$SLURM_PROCID" = 0 ] || sleep 6\nexec {" ".join(ways.TOPOUT)} "$@"\n')
    words = ["srun", "-N2", "-n2", "-K", "sh", script, "run", "--no-report", "--start-timeout"]
    assert "did not arrive" in slurm.run([*words, "2", TRAIN], cwd=tmp_path).stderr
    ended = slurm.run([*words, "40", TRAIN], cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_one_rank_in_a_batch_script_of_two_tasks_is_an_error(slurm: Slurm, tmp_path: Path) -> None:
    job = slurm.sbatch(
        f"{' '.join(ways.TOPOUT)} run --nodes 1 -n 1 --no-report {TRAIN}\n", "-N2", "--ntasks=2", cwd=tmp_path
    )
    slurm.wait(job)
    assert "This job has 2 tasks, and the world would be 1 rank." in slurm.output(job)
    assert not (tmp_path / "topout-runs").exists()


def test_different_versions_on_two_nodes_are_named(slurm: Slurm, tmp_path: Path) -> None:
    script = tmp_path / "other_version.sh"
    code = "import sys, topout; topout.__version__ = '9.9.9'; from topout.cli.main import main; main(sys.argv[1:])"
    script.write_text(
        f'[ "$SLURM_PROCID" = 0 ] && exec {" ".join(ways.TOPOUT)} "$@"\nexec {ways.TOPOUT[0]} -c "{code}" "$@"\n'
    )
    ended = slurm.run(["srun", "-N2", "-n2", "sh", script, "run", "--no-report", TRAIN], cwd=tmp_path, timeout=60)
    assert ended.returncode != 0
    assert "n2 runs another topout than n1" in ended.stderr
    assert "9.9.9" in ended.stderr


def test_a_job_is_started_again_after_a_failure(slurm: Slurm, tmp_path: Path) -> None:
    """The script fails on its first start alone."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and os.environ['RANK'] == '1': raise ValueError('once')\n"
        f"sys.argv = ['x', '3']; exec(open({str(TRAIN)!r}).read())\n"
    )
    ended = ways.run(
        "once in an allocation", slurm, tmp_path, "run", "--no-report", "--restarts", "2", script, timeout=120
    )
    assert ended.returncode == 0, ended
    assert "ValueError: once" in ended.stderr
    assert "restart 1 of 2 on n1, n2" in ended.stderr
    assert len(list((tmp_path / "topout-runs").iterdir())) == 2


TELL = """
import json, os, sys
from pathlib import Path

start, host = os.environ["TORCHELASTIC_RESTART_COUNT"], os.uname().nodename
Path(f"told-{start}-{host}").write_text(json.dumps([sys.argv[1:], dict(os.environ)]))
"""


def told(folder: Path, start: int, host: str) -> tuple[list[str], dict[str, str]]:
    words, environment = json.loads((folder / f"told-{start}-{host}").read_text())
    return words, environment


@pytest.mark.parametrize(
    ("launcher", "rank"),
    [(["srun", "-N2", "-n2"], "$SLURM_PROCID"), (["mpirun.mpich", "-np", "2", "-hosts", "n1,n2"], "$PMI_RANK")],
)
def test_each_task_runs_the_words_that_it_was_given(
    slurm: Slurm, tmp_path: Path, launcher: list[str], rank: str
) -> None:
    (tmp_path / "tell.py").write_text(TELL)
    line = f"exec {' '.join(ways.TOPOUT)} run --no-report tell.py --rank {rank}"

    def once() -> "subprocess.CompletedProcess[str]":
        popen = slurm.popen if launcher[0] == "srun" else slurm.nodes[0].popen
        process = popen([*launcher, "bash", "-c", line], cwd=tmp_path)
        _, stderr = process.communicate(timeout=120)
        return subprocess.CompletedProcess([], process.returncode, "", stderr)

    ended = ways.despite_mpich(once)
    assert ended.returncode == 0, ended.stderr
    for number, host in enumerate(("n1", "n2")):
        words, environment = told(tmp_path, 0, host)
        assert words == ["--rank", str(number)]
        assert environment["RANK"] == str(number)


def test_programs_of_one_mpirun_may_differ(slurm: Slurm, tmp_path: Path) -> None:
    for name in ("tell", "other"):
        (tmp_path / f"{name}.py").write_text(TELL)
    each = [["-np", "1", "-host", host, *ways.TOPOUT, "run", f"{name}.py", name]
            for host, name in (("n1", "tell"), ("n2", "other"))]  # fmt: skip
    words = ["mpirun.openmpi", *each[0], ":", *each[1]]
    process = slurm.nodes[0].popen(words, cwd=tmp_path)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert [told(tmp_path, 0, host)[0] for host in ("n1", "n2")] == [["tell"], ["other"]]
    assert any("task 1 runs other.py, not tell.py" in note for note in only_run(tmp_path)["notes"])


def test_tasks_that_are_not_as_many_as_asked_for_are_an_error(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "tell.py").write_text(TELL)
    ended = ways.run("srun for every rank", slurm, tmp_path, "run", "--per-node", "2", "tell.py")
    assert ended.returncode != 0
    assert "--per-node 2 contradicts the tasks that were started: n1 has 1." in ended.stderr
    assert not list(tmp_path.glob("told-*"))


def test_a_folder_that_another_host_does_not_have_is_named_before_any_rank_runs(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "tell.py").write_text(TELL)
    # each node has a /dev/shm of its own
    line = f"mkdir /dev/shm/mine; cd /dev/shm/mine; cp {tmp_path}/tell.py .; {' '.join(ways.TOPOUT)} run tell.py; ls"
    process = slurm.popen(["salloc", "-Q", "-N2", *slurm.nodes[0].prefix, "bash", "-c", line], cwd=tmp_path)
    stdout, stderr = process.communicate(timeout=120)
    slurm.nodes[0].run(["rm", "-r", "/dev/shm/mine"])
    assert "n2 cannot enter the job's folder /dev/shm/mine." in stderr
    assert "on a file system that all hosts share" in stderr
    assert "told-" not in stdout


@pytest.mark.parametrize("way", ["srun for every rank", "once in an allocation"])
def test_ranks_that_are_left_make_a_world_of_their_own(slurm: Slurm, tmp_path: Path, way: str) -> None:
    script = tmp_path / "tell.py"
    script.write_text(
        TELL + "import time\nPath(f'pid-{os.environ.get(\"RANK\")}').write_text(f'{os.getpid()} {host}')\n"
        "while start == '0': time.sleep(0.1)\n"
    )
    process = ways.start(
        way, slurm, tmp_path, "run", "--no-report", "-n", "2", "--restarts", "1", "--min-nodes", "1", script,
    )  # fmt: skip
    pid_of(tmp_path, 0)
    pid, _ = pid_of(tmp_path, 1)
    os.kill(int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
    process.communicate(timeout=120)
    _, environment = told(tmp_path, 1, "n1")
    assert (environment["RANK"], environment["WORLD_SIZE"]) == ("0", "1")
    assert (environment["SLURM_PROCID"], environment["SLURM_NTASKS"]) == ("0", "1")


def test_a_job_goes_on_with_the_nodes_that_are_left(slurm: Slurm, tmp_path: Path) -> None:
    process = ways.start(
        "srun for every rank", slurm, tmp_path,
        "run", "--no-report", "--restarts", "1", "--min-nodes", "1", TRAIN, 100_000,
    )  # fmt: skip
    pid_of(tmp_path, 0)
    pid, _ = pid_of(tmp_path, 1)
    launcher = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(launcher, signal.SIGKILL)
    assert wait_for(lambda: len(list((tmp_path / "topout-runs").iterdir())) == 2, 60)
    pid = pid_of(tmp_path, 0)[0]
    assert wait_for(lambda: pid_of(tmp_path, 0)[0] != pid or not is_running(pid), 60)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    newest = max((tmp_path / "topout-runs").iterdir(), key=lambda run: run.stat().st_mtime)
    assert [rank["host"] for rank in json.loads((newest / "run.json").read_text())["ranks"]] == ["n1"]


def test_two_jobs_on_the_same_nodes_do_not_meet(slurm: Slurm, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    job = ["salloc", "-Q", "-N2", "--overcommit", "-s"]
    processes = [
        slurm.popen([*job, *slurm.nodes[0].prefix, *ways.TOPOUT, "run", "--no-report", TRAIN, 50], cwd=folder)
        for folder in folders
    ]
    for process, folder in zip(processes, folders, strict=True):
        stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr
        assert "rank 0 of 2 on n1" in stdout
        assert only_run(folder)["status"] == "finished"
