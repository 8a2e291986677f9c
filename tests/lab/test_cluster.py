"""The laboratory is what it claims: nodes apart, a link of its rate, a Slurm that schedules, no trace afterwards."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import leftovers, ways
from tests.lab.cluster import Nodes, Slurm
from tests.launch.jobs import is_running, wait_for

pytestmark = pytest.mark.lab
REPOSITORY = Path(__file__).resolve().parents[2]

RECEIVE = """
import socket, time
listening = socket.create_server(("", 5000))
print("listening", flush=True)
connection, _ = listening.accept()
start, num_bytes = time.monotonic(), 0
while data := connection.recv(1 << 20):
    num_bytes += len(data)
print(num_bytes * 8 / (time.monotonic() - start) / 1e9)
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 5000), timeout=5) as connection:
    connection.settimeout(None)
    for _ in range(int(sys.argv[2])):
        connection.sendall(bytes(1 << 20))
"""


def gbit_per_s(nodes: Nodes, num_mib: int) -> float:
    """What a socket carries from n1 to n2."""
    receiver = nodes[1].popen([sys.executable, "-c", RECEIVE])
    assert receiver.stdout is not None
    assert receiver.stdout.readline() == "listening\n"
    nodes[0].run([sys.executable, "-c", SEND, "n2", num_mib], check=True)
    return float(receiver.communicate(timeout=60)[0])


def can_connect(nodes: Nodes) -> bool:
    listening = nodes[1].popen([sys.executable, "-c", RECEIVE])
    assert listening.stdout is not None
    listening.stdout.readline()
    code = nodes[0].run([sys.executable, "-c", SEND, "n2", 0]).returncode
    listening.kill()
    listening.communicate()
    return code == 0


def test_a_node_has_its_own_name_address_interfaces_core_and_clock(nodes: Nodes) -> None:
    ask = "hostname; hostname -i; ls /sys/class/net | xargs; taskset -cp $$ | sed 's/.*: //'"
    cores = sorted(os.sched_getaffinity(0))
    assert [node.run(["sh", "-c", ask]).stdout.splitlines() for node in nodes] == [
        ["n1", "10.77.0.1", "eth0 lo", str(cores[0])],
        ["n2", "10.77.0.2", "eth0 lo", str(cores[1 % len(cores)])],
    ]
    uptimes_s = [float(node.run(["cat", "/proc/uptime"]).stdout.split()[0]) for node in nodes]
    assert 900 < uptimes_s[1] - uptimes_s[0] < 1100


def test_a_command_keeps_its_folder_its_variables_and_its_process_number(nodes: Nodes, tmp_path: Path) -> None:
    process = nodes[1].popen(["sh", "-c", "pwd; echo $WORD; echo $$"], cwd=tmp_path, env={"WORD": "given"})
    assert process.communicate()[0].split() == [str(tmp_path), "given", str(process.pid)]


def test_the_link_carries_its_rate_and_not_more(nodes: Nodes) -> None:
    # the best of three, here and below, since a busy machine may keep the sender waiting
    assert 0.5 < max(gbit_per_s(nodes, 64) for _ in range(3)) < 1.1


def test_a_link_can_be_slowed(nodes: Nodes) -> None:
    nodes[1].set_link(rate="50mbit")
    assert 0.02 < max(gbit_per_s(nodes, 2) for _ in range(3)) < 0.1


def test_a_cut_link_is_cut_and_can_be_mended(nodes: Nodes) -> None:
    assert can_connect(nodes)
    nodes[1].set_link(up=False)
    assert not can_connect(nodes)
    nodes[1].set_link(up=True)
    assert can_connect(nodes)


def test_two_laboratories_do_not_meet(nodes: Nodes) -> None:
    with Nodes() as others:
        listening = others[1].popen([sys.executable, "-c", RECEIVE])
        assert listening.stdout is not None
        listening.stdout.readline()
        assert "refused" in nodes[0].run([sys.executable, "-c", SEND, "n2", 0]).stderr
        others[0].run([sys.executable, "-c", SEND, "n2", 0], check=True)
        listening.communicate(timeout=30)


MPI = {
    "openmpi": ["mpirun.openmpi", "-np", "2", "--host", "n1,n2"],
    "mpich": ["mpirun.mpich", "-np", "2", "-hosts", "n1,n2"],
}


@pytest.mark.parametrize("launcher", MPI)
@pytest.mark.parametrize("start", ["n1", "login"])
def test_mpirun_spans_both_nodes(nodes: Nodes, launcher: str, start: str) -> None:
    first = nodes[0] if start == "n1" else nodes.login
    done = ways.despite_mpich(lambda: first.run([*MPI[launcher], "hostname"], timeout=60))
    assert sorted(done.stdout.split()) == ["n1", "n2"], done


def test_srun_starts_a_task_on_each_node_bound_to_its_core(slurm: Slurm, nodes: Nodes) -> None:
    ask = "echo $(hostname) $(taskset -cp $$ | sed 's/.*: //') $SLURM_CPUS_ON_NODE"
    said = slurm.run(["srun", "-N2", "-n2", "sh", "-c", ask], check=True).stdout
    assert sorted(said.splitlines()) == [f"{node.name} {node.cores[0]} 1" for node in nodes]


def test_nodes_that_share_cores_take_two_tasks_each(tmp_path: Path) -> None:
    with Nodes(cores_per_node=2) as nodes, Slurm(nodes, tmp_path / "slurm") as slurm:
        said = slurm.run(["srun", "-N2", "--ntasks-per-node=2", "hostname"], check=True).stdout
    assert sorted(said.split()) == ["n1", "n1", "n2", "n2"]


def test_a_requeued_job_starts_again(slurm: Slurm) -> None:
    job = slurm.sbatch('echo start ${SLURM_RESTART_COUNT:-0}\n[ -n "$SLURM_RESTART_COUNT" ] || sleep 60', "-N2")
    assert wait_for(lambda: "start 0" in slurm.output(job))
    slurm.requeue(job)
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1")
    assert "start 1" in slurm.output(job)


WARNED = """
trap 'echo warned; kill $!; exit 0' USR1
echo started
sleep 60 & wait
"""


# Slurm requeues by itself only a job that does not end after the warning, 20 s later.
REQUEUES_ITSELF = """
trap 'echo warned; kill $!; scontrol requeue $SLURM_JOB_ID; sleep 60' USR1
echo started ${SLURM_RESTART_COUNT:-0}
[ -n "$SLURM_RESTART_COUNT" ] || { sleep 60 & wait; }
"""


def test_a_preempted_job_is_warned_and_can_requeue_itself(slurm: Slurm) -> None:
    job = slurm.sbatch(REQUEUES_ITSELF, "-N2", "--signal=B:USR1@30")
    assert wait_for(lambda: "started 0" in slurm.output(job))
    urgent = slurm.sbatch("hostname", "-N2", "--partition=urgent")
    assert slurm.wait(urgent)["JobState"] == "COMPLETED"
    assert "warned" in slurm.output(job)
    assert slurm.wait(job)["JobState"] == "COMPLETED"
    assert "started 1" in slurm.output(job)


def test_a_signal_reaches_the_script_of_a_job(slurm: Slurm) -> None:
    job = slurm.sbatch(WARNED)
    assert wait_for(lambda: "started" in slurm.output(job))
    slurm.cancel(job, "--batch", "--signal=USR1")
    assert slurm.wait(job)["JobState"] == "COMPLETED"
    assert "warned" in slurm.output(job)


def test_nodes_of_one_switch_are_asked_for(slurm: Slurm) -> None:
    said = slurm.run(["srun", "-N2", "--switches=1", "printenv", "SLURM_TOPOLOGY_ADDR"], check=True).stdout
    assert sorted(said.split()) == ["spine.leaf1.n1", "spine.leaf1.n2"]


@pytest.fixture
def broken(slurm: Slurm, nodes: Nodes) -> Iterator[Slurm]:
    """A Slurm as a rude test leaves it."""
    job = slurm.sbatch("srun sleep 600", "-N2")
    slurm.wait(job, states=["RUNNING"])
    slurm.drain(nodes[0])
    slurm.kill_node(nodes[1])
    nodes[0].set_link(rate="10mbit", up=False)
    nodes[0].popen(["sleep", "600"], start_new_session=True)
    yield slurm


def test_what_a_test_breaks_is_mended_for_the_next(broken: Slurm) -> None:
    broken.mend()
    broken.nodes.mend()
    assert broken.node_states() == {"n1": "idle", "n2": "idle"}
    assert not any(node.processes("sleep") for node in broken.nodes)
    assert max(gbit_per_s(broken.nodes, 32) for _ in range(3)) > 0.5


OWNER = """
import sys, time
from pathlib import Path
from tests.lab.cluster import Nodes, Slurm
folder = Path(sys.argv[1])
with Nodes() as nodes, Slurm(nodes, folder / "slurm") as slurm:
    slurm.sbatch("srun sleep 600", "-N2")
    while not all(node.processes("sleep") for node in nodes):
        time.sleep(0.05)
    nodes.login.popen(["sleep", "600"], start_new_session=True)
    networks = [node.network for node in (*nodes, nodes.login)]
    print(nodes.folder, nodes._guard.pid, *networks, flush=True)
    if sys.argv[2] == "raise":
        raise ValueError("a test that fails")
    if sys.argv[2] == "wait":
        time.sleep(600)
"""


def open_laboratory(tmp_path: Path, then: str) -> tuple["subprocess.Popen[str]", Path, int, list[str]]:
    """A process with a laboratory and a job in it; its folder, its guard and its networks."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path), then], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    folder, guard, *networks = owner.stdout.readline().split()
    assert len(networks) == 3
    return owner, Path(folder), int(guard), networks


def is_gone(folder: Path, networks: list[str]) -> bool:
    """No process is left in the namespaces, so none of them, their links and their mounts exist any more."""
    return not leftovers.processes_in(networks) and not folder.exists()


@pytest.mark.parametrize("then", ["return", "raise"])
def test_nothing_is_left_of_a_laboratory(tmp_path: Path, then: str) -> None:
    owner, folder, _, networks = open_laboratory(tmp_path, then)
    assert owner.wait(timeout=60) == (then == "raise")
    assert is_gone(folder, networks)
    assert str(folder) not in Path("/proc/mounts").read_text()
    assert not {"n1", "n2", "switch"} & {*os.listdir("/sys/class/net")}


def test_nothing_is_left_when_the_tests_are_killed(tmp_path: Path) -> None:
    setting = leftovers.autogroup()
    # another laboratory may be up, and has switched it off
    leftovers.set_autogroup(setting and "1\n")
    try:
        owner, folder, guard, networks = open_laboratory(tmp_path, "wait")
        assert leftovers.autogroup() in ("0\n", None)
        owner.kill()
        owner.wait()
        assert wait_for(lambda: is_gone(folder, networks) and not is_running(guard))
        assert leftovers.autogroup() in ("1\n", None)
    finally:
        leftovers.set_autogroup(setting)


def test_what_a_killed_session_left_is_swept_by_the_next(tmp_path: Path) -> None:
    owner, folder, guard, networks = open_laboratory(tmp_path, "wait")
    os.kill(guard, signal.SIGKILL)
    owner.kill()
    owner.wait()
    assert leftovers.processes_in(networks)
    leftovers.sweep()
    assert is_gone(folder, networks)


def test_a_living_laboratory_is_not_swept(nodes: Nodes) -> None:
    leftovers.sweep()
    assert nodes[0].run(["hostname"]).stdout == "n1\n"
