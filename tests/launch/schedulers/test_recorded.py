"""LSF, PBS and Flux by environments put together from their public documentation; nobody has run them here.

Grid Engine's file formats are those seen on 8.1.9; its real jobs are in tests/lab/test_sge.py.
"""

import os
import socket
import stat
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from tests.launch.schedulers import environments as env
from topout.launch import variables
from topout.launch.agent import _place
from topout.launch.allocation import Allocation, Task
from topout.launch.detect import detect_allocation
from topout.launch.job import is_this_host_alone
from topout.launch.leading import find_lead
from topout.launch.schedulers import flux, lsf, openmpi, pbs, sge
from topout.launch.signals import LauncherSignals
from topout.launch.starters import Starters, start_through_scheduler
from topout.launch.variables import is_this_host, with_private_variables
from topout.schema.errors import TopoutError
from topout.schema.spec import RunSpec
from topout.schema.world import Host, Rank, World


def only(environ: dict[str, str], *prefixes: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(prefixes)}


@pytest.mark.parametrize(
    ("origin", "why", "do"),
    [
        ("command line", "it has 2: a1, a2", "leave out --nodes, or ask"),
        ("topout.toml:3", "it has 2: a1, a2; topout.toml:3 says it", "leave out nodes there, or ask"),
    ],
)
def test_more_nodes_than_the_job_has_are_refused_by_who_said_it(origin: str, why: str, do: str) -> None:
    job = Allocation(scheduler="lsf", job_id="9", hosts=("a1", "a2"))
    spec = RunSpec(nodes=4, origins={"nodes": origin})
    with LauncherSignals() as signals, pytest.raises(TopoutError, match="--nodes 4 is more than") as raised:
        start_through_scheduler(spec, job, signals, print)
    assert raised.value.why == why
    assert raised.value.do.startswith(do)


# LSF


def test_a_task_of_jsrun_is_found_and_the_batch_host_dropped() -> None:
    assert detect_allocation(env.JSRUN) == Allocation(
        scheduler="lsf",
        job_id="123456.1",
        hosts=("h49n16", "h50n02"),
        num_tasks=12,
        task=Task(rank=7, world_size=12, local_rank=1, local_size=6),
        head="h49n16",
    )


def test_a_script_of_lsf_starts_ranks_itself_and_its_slots_are_not_tasks() -> None:
    assert detect_allocation(only(env.JSRUN, "LSB_")) == Allocation(
        scheduler="lsf", job_id="123456", hosts=("h49n16", "h50n02")
    )


def test_a_host_file_comes_first_with_repeated_lines_as_slots(tmp_path: Path) -> None:
    path = tmp_path / "hostfile"
    path.write_text("login1\nbatch5\na1\na1\na2\na2\n")
    environ = {"LSB_JOBID": "9", "LSB_DJOB_HOSTFILE": str(path), "LSB_MCPU_HOSTS": "other 1"}
    assert lsf.job_hosts(environ) == ("a1", "a2")


def test_a_launch_host_that_is_named_like_the_others_is_dropped_with_jsrun_only() -> None:
    environ = {"LSB_JOBID": "9", "LSB_MCPU_HOSTS": "lassen710 1 lassen3 40 lassen4 40"}
    assert lsf.job_hosts({**environ, "CSM_ALLOCATION_ID": "77"}) == ("lassen3", "lassen4")
    assert lsf.job_hosts(environ) == ("lassen710", "lassen3", "lassen4"), "a plain job may have one slot there"


def test_a_host_file_that_a_container_hides_is_replaced_by_the_variable() -> None:
    environ = {"LSB_JOBID": "9", "LSB_DJOB_HOSTFILE": "/not/there", "LSB_MCPU_HOSTS": "a1 2 a2 2"}
    assert lsf.job_hosts(environ) == ("a1", "a2")
    with pytest.raises(TopoutError, match="/not/there cannot be read"):
        lsf.job_hosts({"LSB_JOBID": "9", "LSB_DJOB_HOSTFILE": "/not/there"})


@pytest.mark.parametrize("hosts", ["a1 2 a2", "a1 x", "2 a1"])
def test_pairs_of_lsf_that_are_none_are_named(hosts: str) -> None:
    with pytest.raises(TopoutError, match="LSB_MCPU_HOSTS cannot be read"):
        lsf.detect({"LSB_JOBID": "9", "LSB_MCPU_HOSTS": hosts})


def test_elements_of_an_lsf_array_are_told_apart() -> None:
    assert lsf.job_id({"LSB_JOBID": "9", "LSB_JOBINDEX": "3"}) == "9[3]"
    assert lsf.job_id({"LSB_JOBID": "9", "LSB_JOBINDEX": "0"}) == "9"


def test_lsf_starts_agents_with_jsrun_where_there_is_one_and_blaunch_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    granted = Allocation(scheduler="lsf", job_id="9", hosts=("a1", "a2", "a3"))
    (tmp_path / "blaunch").write_text("#!/bin/sh\n")
    (tmp_path / "blaunch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert lsf.start_commands(granted, ["agent"], num_hosts=2) == [["blaunch", "-no-shell", "-z", "a1 a2", "agent"]]
    monkeypatch.setenv("CSM_ALLOCATION_ID", "77")
    (words,) = lsf.start_commands(granted, ["agent"], num_hosts=2)
    assert words[:5] == ["jsrun", "--nrs", "2", "--rs_per_host", "1"]
    assert words[-1] == "agent"


def world_of(num_ranks: int) -> World:
    ranks = tuple(
        Rank(rank=number, local_rank=number, node_rank=0, host="a1", cores=(), num_threads=1)
        for number in range(num_ranks)
    )
    host = Host(name="a1", cores=(), memory_bytes=0)
    return World(hosts=(host,), ranks=ranks, master_address="a1", master_port=1)


@pytest.mark.parametrize(
    ("scheduler", "variables"),
    [
        (
            lsf,
            {
                "JSM_NAMESPACE_RANK": "1",
                "JSM_NAMESPACE_SIZE": "2",
                "JSM_NAMESPACE_LOCAL_RANK": "1",
                "JSM_NAMESPACE_LOCAL_SIZE": "2",
            },
        ),
        (
            openmpi,
            {
                "OMPI_COMM_WORLD_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "2",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            },
        ),
        (
            flux,
            {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2", "FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_NNODES": "1"},
        ),
    ],
)
def test_a_starter_that_counts_agents_is_corrected_and_one_that_does_not_left_alone(
    monkeypatch: pytest.MonkeyPatch, scheduler: ModuleType, variables: dict[str, str]
) -> None:
    world = world_of(2)
    assert scheduler.rank_variables(world.ranks[1], world) == {}
    monkeypatch.setenv(next(iter(variables)), "0")
    assert scheduler.rank_variables(world.ranks[1], world) == variables


# PBS


@pytest.fixture
def node_file(tmp_path: Path) -> Path:
    path = tmp_path / "nodes"
    path.write_text("x1.hsn.example.org\nx2.hsn.example.org\n")
    return path


def test_a_task_of_pals_is_found(node_file: Path) -> None:
    assert detect_allocation({**env.PALS, "PBS_NODEFILE": str(node_file)}) == Allocation(
        scheduler="pbs",
        job_id="8812.aurora-pbs-0001.0d6c7a2e-4d1e-4a7c-9f43-6c9f0f6f0c11",
        hosts=("x1.hsn.example.org", "x2.hsn.example.org"),
        num_tasks=24,
        task=Task(rank=13, world_size=24, local_rank=1, local_size=12, node_rank=1),
        head="x1.hsn.example.org",
    )


@pytest.mark.parametrize("variables", [{}, {"PBS_NODEFILE": "/var/spool/pbs/aux/8812.aurora-pbs-0001"}])
def test_a_task_of_pals_in_a_container_is_found_without_the_host_file(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    granted = detect_allocation({**env.PALS, **variables})
    assert granted is not None and granted.task is not None
    assert (granted.hosts, granted.head, granted.num_tasks, granted.task.rank) == ((), None, 24, 13)
    monkeypatch.setenv("TOPOUT_HEAD", "10.0.0.1")
    lead = find_lead(granted, granted.task)
    assert (lead.addresses, lead.is_own) == (("10.0.0.1",), False)
    numbers = dict.fromkeys(["PALS_RANKID", "PALS_LOCAL_RANKID", "PALS_NODEID", "PMI_RANK"], "0")
    alone = detect_allocation({**env.PALS, **variables, **numbers, "PMI_SIZE": "1", "PALS_LOCAL_SIZE": "1"})
    assert alone is not None and is_this_host_alone(alone), "mpiexec -n 1 in a container starts one rank there"


def test_a_pals_task_that_does_not_know_its_world_is_refused(node_file: Path) -> None:
    environ = {name: value for name, value in env.PALS.items() if name != "PMI_SIZE"}
    with pytest.raises(TopoutError) as caught:
        detect_allocation({**environ, "PBS_NODEFILE": str(node_file)})
    assert caught.value.problem == "PALS_RANKID=13 is set, PMI_SIZE is not."
    assert "export PMI_SIZE" in caught.value.do


def test_repeated_hosts_of_pbs_are_ranks_and_those_of_torque_cores(tmp_path: Path) -> None:
    path = tmp_path / "nodes"
    path.write_text("n1\nn1\nn2\nn2\n")
    environ = {"PBS_JOBID": "12[3].server", "PBS_NODEFILE": str(path)}
    assert pbs.detect(environ) == Allocation(
        scheduler="pbs", job_id="12[3].server", hosts=("n1", "n2"), num_tasks=4, tasks_per_host=(2, 2)
    )
    torque = pbs.detect({**environ, "PBS_VERSION": "TORQUE-6.1.3", "PBS_NUM_PPN": "2"})
    assert torque is not None
    assert (torque.hosts, torque.num_tasks) == (("n1", "n2"), None)


def test_a_host_named_once_does_not_ask_for_one_rank(node_file: Path) -> None:
    granted = pbs.detect({"PBS_JOBID": "1.s", "PBS_NODEFILE": str(node_file)})
    assert granted is not None
    assert (granted.num_tasks, granted.tasks_per_host) == (None, None)


@pytest.mark.parametrize("variables", [{}, {"PBS_NODEFILE": ""}, {"PBS_NODEFILE": "/var/spool/pbs/aux/1.s"}])
def test_a_pbs_job_without_a_host_file_is_an_error(variables: dict[str, str]) -> None:
    with pytest.raises(TopoutError) as caught:
        detect_allocation({"PBS_JOBID": "1.s", **variables})
    assert "PBS_NODEFILE" in f"{caught.value.problem} {caught.value.why}"
    assert caught.value.exit_code == 3


def test_pbs_passes_variables_in_a_file_that_its_reader_removes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A stand-in for pbs_tmrsh that, like it, hands over the words but neither variables nor the folder."""
    starter = tmp_path / "pbs_tmrsh"
    starter.write_text('#!/bin/sh\nshift\ncd /\nexec /usr/bin/env -i "$@"\n')
    starter.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("GREETING", "it's\n'here'")
    monkeypatch.setenv("SHELLOPTS", "braceexpand")
    monkeypatch.chdir(tmp_path)
    granted = Allocation(scheduler="pbs", job_id="1.s", hosts=(socket.gethostname(), "elsewhere"))
    show = ["/bin/sh", "-c", 'printf "%s|%s|%s|%s" "$PWD" "$GREETING" "$TOKEN" "$TOPOUT_PLACE"']
    here, there = pbs.start_commands(granted, show, num_hosts=2, variables={"TOKEN": "secret"})
    assert here[:2] == ["/usr/bin/env", "TOPOUT_PLACE=0/2"]
    assert there[:2] == ["pbs_tmrsh", "elsewhere"]
    assert "secret" not in " ".join(there)
    (file,) = (tmp_path / "config/topout").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "SHELLOPTS" not in file.read_text(), "bash would refuse the file"
    done = subprocess.run(there, capture_output=True, text=True, check=True)
    assert done.stdout == f"{tmp_path}|it's\n'here'|secret|1/2"
    assert not file.exists()


def test_files_with_variables_do_not_outlive_a_start_that_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    granted = Allocation(scheduler="pbs", job_id="1.s", hosts=("elsewhere", "farther"))
    with pytest.raises(TopoutError, match="pbs_tmrsh cannot be started"):
        Starters(granted, 2, {"TOKEN": "secret"})
    assert list((tmp_path / "config/topout").iterdir()) == []


def test_a_user_without_a_home_is_told_where_the_file_could_be(homeless: None, tmp_path: Path) -> None:
    with pytest.raises(TopoutError) as caught:
        with_private_variables({}, {"TOKEN": "secret"}, ["agent"])
    assert "home folder" in caught.value.problem
    assert "export XDG_CONFIG_HOME" in caught.value.do
    assert list(tmp_path.iterdir()) == []


def test_variables_that_are_no_text_travel_as_they_are(tmp_path: Path) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path), "LATIN": os.fsdecode(b"caf\xe9")}
    words = with_private_variables(environ, {}, ["/bin/sh", "-c", 'printf "%s" "$LATIN"'])
    assert subprocess.run(words, capture_output=True, check=True).stdout == b"caf\xe9"


@pytest.mark.parametrize(("hosts", "own"), [(("NODE01", "NODE02"), "node02"), (("node01", "node02.a.org"), "Node02")])
def test_names_of_hosts_are_compared_in_small_letters(
    monkeypatch: pytest.MonkeyPatch, hosts: tuple[str, ...], own: str
) -> None:
    monkeypatch.setattr(variables._socket, "gethostname", lambda: own)
    assert [is_this_host(host) for host in hosts] == [False, True]
    assert _place(hosts, None) == 1


def test_torque_is_started_with_its_own_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PBS_VERSION", "TORQUE-6.1.3")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    granted = Allocation(scheduler="pbs", job_id="1.s", hosts=("elsewhere",))
    assert pbs.start_commands(granted, ["agent"], num_hosts=1)[0][:3] == ["pbsdsh", "-h", "elsewhere"]


# Flux


def test_a_task_of_flux_is_found_and_flux_asked_for_the_hosts(monkeypatch: pytest.MonkeyPatch, fake_flux: Path) -> None:
    assert detect_allocation(env.FLUX_TASK) == Allocation(
        scheduler="flux",
        job_id="/ƒD2e73NP/ƒDCB6RV",
        hosts=("f1", "f2"),
        num_tasks=8,
        task=Task(rank=5, world_size=8, local_rank=1),
        head="f1",
    )
    assert (fake_flux / "words").read_text() == "jobs --no-header --format={nodelist} ƒDCB6RV\n"


def test_a_script_of_flux_batch_gets_the_hosts_of_its_instance(fake_flux: Path) -> None:
    assert detect_allocation(env.FLUX_BATCH) == Allocation(scheduler="flux", job_id="ƒD2e73NP", hosts=("f1", "f2"))
    assert (fake_flux / "words").read_text() == "getattr hostlist\n"


@pytest.fixture
def fake_flux(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    program = tmp_path / "flux"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\necho "f[1-2]"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def test_a_script_whose_flux_does_not_answer_is_refused_and_not_run_on_one_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TopoutError, match="does not tell the hosts"):
        detect_allocation(env.FLUX_BATCH)
    task = detect_allocation(env.FLUX_TASK)
    assert task is not None
    assert (task.hosts, task.head) == ((), None)


def test_a_task_of_flux_in_a_container_is_led_by_the_host_that_the_job_script_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TOPOUT_HEAD", "10.0.0.1")
    granted = detect_allocation({**env.FLUX_TASK, "TOPOUT_HEAD": "10.0.0.1"})
    assert granted is not None and granted.task is not None
    lead = find_lead(granted, granted.task)
    assert (lead.addresses, lead.is_own) == (("10.0.0.1",), False)
    single = dict.fromkeys(["FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID", "PMI_RANK"], "0")
    single |= {"FLUX_JOB_SIZE": "1", "FLUX_JOB_NNODES": "1", "TOPOUT_HEAD": "10.0.0.1"}
    alone = detect_allocation({**env.FLUX_TASK, **single})
    assert alone is not None and is_this_host_alone(alone)


def test_a_script_of_flux_gets_its_hosts_also_where_it_names_the_head_of_its_containers(fake_flux: Path) -> None:
    for named in ({"TOPOUT_HEAD": "f1"}, {"TOPOUT_HEAD": "fd00::7", "TOPOUT_TOKEN": "of the user"}):
        found = detect_allocation({**env.FLUX_BATCH, **named})
        assert found is not None and found.hosts == ("f1", "f2")


@pytest.mark.parametrize("address", ["10.0.0.1", "fd00::7"])
def test_a_launcher_that_a_head_started_asks_flux_nothing(fake_flux: Path, address: str) -> None:
    only = {"FLUX_TASK_RANK": "0", "FLUX_TASK_LOCAL_ID": "0", "FLUX_JOB_SIZE": "1", "FLUX_JOB_NNODES": "1"}
    told = {"TOPOUT_HEAD": f"{address}:20123", "TOPOUT_TOKEN": "of the head"}
    for tasks in (only, {}):
        found = detect_allocation({**env.FLUX_TASK, **tasks, "PMI_RANK": "0", **told})
        assert found is not None and found.hosts == ()
    assert not (fake_flux / "words").exists()


def test_one_task_a_node_is_its_place() -> None:
    granted = flux.detect({**env.FLUX_TASK, "FLUX_JOB_SIZE": "2", "FLUX_TASK_RANK": "1", "FLUX_TASK_LOCAL_ID": "0"})
    assert granted is not None
    assert granted.task == Task(rank=1, world_size=2, local_rank=0, local_size=1, node_rank=1)


def test_the_systems_own_flux_is_no_allocation() -> None:
    assert detect_allocation({"FLUX_URI": "local:///run/flux/local"}) is None


def test_the_systems_own_flux_does_not_hide_another_scheduler() -> None:
    found = detect_allocation({**env.SLURM_BATCH, "FLUX_URI": "local:///run/flux/local"})
    assert found is not None
    assert found.scheduler == "slurm"


# Grid Engine


def sge_job(tmp_path: Path, **variables: str) -> dict[str, str]:
    path = tmp_path / "pe_hostfile"
    path.write_text("n2 2 all.q@n2 UNDEFINED\nn1 2 all.q@n1 UNDEFINED\nn2 1 long.q@n2 UNDEFINED\n")
    fixed = {"JOB_ID": "3", "SGE_TASK_ID": "undefined", "PE_HOSTFILE": str(path), "NSLOTS": "5", "QUEUE": "all.q"}
    return {**fixed, **variables}


def test_the_hosts_of_a_parallel_environment_are_read_each_once(tmp_path: Path) -> None:
    assert detect_allocation(sge_job(tmp_path)) == Allocation(scheduler="sge", job_id="3", hosts=("n2", "n1"))


def test_tasks_of_a_grid_engine_array_are_told_apart(tmp_path: Path) -> None:
    assert sge.job_id(sge_job(tmp_path, SGE_TASK_ID="4")) == "3.4"


def test_a_job_without_a_parallel_environment_has_this_host_alone() -> None:
    assert detect_allocation({"JOB_ID": "3", "SGE_TASK_ID": "undefined"}) == Allocation(scheduler="sge", job_id="3")


def test_a_missing_file_of_grid_engine_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TopoutError) as caught:
        detect_allocation(sge_job(tmp_path, PE_HOSTFILE=str(tmp_path / "gone")))
    assert "gone cannot be read" in caught.value.problem
    assert "PE_HOSTFILE" in caught.value.why


def test_a_variable_that_is_only_called_like_grid_engines_is_none() -> None:
    assert detect_allocation({"JOB_ID": "3"}) is None


def test_grid_engine_starts_agents_elsewhere_by_qrsh_and_here_without() -> None:
    granted = Allocation(scheduler="sge", job_id="3", hosts=(f"{socket.gethostname()}.example.org", "n9"))
    here, there = sge.start_commands(granted, ["agent", "a b"], num_hosts=2)
    assert here == ["/usr/bin/env", "TOPOUT_PLACE=0/2", "agent", "a b"]
    assert there[-4:] == ["/usr/bin/env", "TOPOUT_PLACE=1/2", "agent", "a b"]
    assert there[:6] == ["qrsh", "-inherit", "-nostdin", "-noshell", "-V", "n9"]


def test_an_agent_started_at_a_place_knows_it() -> None:
    # on another host than the first there is no PE_HOSTFILE, although the variable travels
    found = detect_allocation({"JOB_ID": "3", "PE_HOSTFILE": "/not/here", "TOPOUT_PLACE": "1/2"})
    assert found is not None
    assert found.task is not None
    assert (found.task.node_rank, found.task.world_size) == (1, 2)
    with pytest.raises(TopoutError, match="TOPOUT_PLACE=2/2"):
        detect_allocation({"TOPOUT_PLACE": "2/2"})


def test_functions_of_the_shell_do_not_travel() -> None:
    assert sge.start_environment({"PATH": "/bin", "BASH_FUNC_module%%": "() { :; }"}) == {"PATH": "/bin"}
