"""Of several speakers the innermost launcher tells the rank, the resource manager the hosts; nobody trains alone."""

import subprocess
import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from tests.launch.schedulers import environments as env
from topout.launch.allocation import Allocation, Task
from topout.launch.detect import check_world, detect_allocation
from topout.launch.rank_env import rank_environment
from topout.launch.schedulers import hydra, openmpi
from topout.schema import plugin
from topout.schema.errors import TopoutError
from topout.schema.spec import RunSpec
from topout.schema.world import Host, Rank, World


def test_a_laptop_has_no_allocation() -> None:
    assert detect_allocation({"PATH": "/bin", "HOME": "/root"}) is None


def test_a_rank_of_mpirun_reports_to_mpiruns_host_at_any_of_its_addresses() -> None:
    assert detect_allocation(env.OPENMPI) == Allocation(
        scheduler="openmpi",
        job_id="openmpi-773390337-48621",
        num_tasks=2,
        task=Task(rank=1, world_size=2, local_rank=1, local_size=2),
        head="192.0.2.2,10.77.0.254,fd00::2",
    )


def test_mpirun_in_a_slurm_job_tells_the_rank_and_slurm_the_hosts() -> None:
    found = detect_allocation(env.OPENMPI_IN_SLURM)
    assert found is not None
    assert found.task == Task(rank=2, world_size=3, local_rank=0, local_size=1)
    assert (found.hosts, found.head) == (("n1", "n2"), "n1"), "the step of mpirun's daemon has n2 alone"


def test_ranks_of_mpirun_below_the_script_and_below_its_daemons_are_of_one_job() -> None:
    step = [name for name in env.OPENMPI_IN_SLURM if name.startswith("SLURM_STEP")]
    below_script = {name: value for name, value in env.OPENMPI_IN_SLURM.items() if name not in step}
    first, second = detect_allocation(below_script), detect_allocation(env.OPENMPI_IN_SLURM)
    assert first is not None
    assert second is not None
    assert first.job_id == second.job_id == "openmpi-1308033025-47707"


def test_ranks_that_mpirun_started_over_ssh_are_of_the_job_although_they_see_no_manager() -> None:
    elsewhere = {name: value for name, value in env.OPENMPI_IN_SLURM.items() if not name.startswith("SLURM_")}
    first, second = detect_allocation(env.OPENMPI_IN_SLURM), detect_allocation(elsewhere)
    assert first is not None
    assert second is not None
    assert (first.job_id, first.hosts[0], second.hosts) == (second.job_id, "n1", ())
    assert second.head == "10.77.0.1", "where mpirun runs"


def test_mpiexec_in_a_slurm_job_tells_the_rank_although_srun_counts_otherwise() -> None:
    found = detect_allocation(env.MPICH_IN_SLURM)
    assert found is not None
    assert found.task == Task(rank=2, world_size=3, local_rank=0, local_size=1)
    assert (found.scheduler, found.hosts, found.head) == ("hydra", ("n1", "n2"), "n1")
    assert found.job_id.startswith("6/hydra-")


def test_pmi_of_slurm_is_not_taken_for_mpiexec() -> None:
    found = detect_allocation({**env.SLURM_TASK, "PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "9"})
    assert found is not None
    assert (found.scheduler, found.job_id) == ("slurm", "2.0")


def test_mpirun_on_a_host_that_lacks_the_managers_file_goes_by_mpiruns_word() -> None:
    # PE_HOSTFILE and PBS_NODEFILE may exist on the first host only
    for variables in ({"JOB_ID": "3", "PE_HOSTFILE": "/not/here"}, {"PBS_JOBID": "3", "PBS_NODEFILE": "/not/here"}):
        found = detect_allocation({**env.OPENMPI, **variables})
        assert found is not None
        assert (found.hosts, found.job_id) == ((), "openmpi-773390337-48621")
        assert found.head is not None


def test_what_stands_behind_a_port_of_mpirun_does_not_hide_its_address() -> None:
    found = openmpi.detect({**env.OPENMPI, "OMPI_MCA_orte_hnp_uri": '"773390336.0;tcp://10.0.0.1,192.168.0.1:500"'})
    assert found is not None
    assert found.head == "10.0.0.1,192.168.0.1"


def test_prrte_names_its_host_in_the_name_of_the_job() -> None:
    environ = {name: value for name, value in env.OPENMPI.items() if "MCA" not in name}
    found = openmpi.detect({**environ, "PMIX_NAMESPACE": "prterun-gpu-node-07-3512@1"})
    assert found is not None
    assert found.head == "gpu-node-07"


def test_a_rank_of_mpirun_without_a_job_is_refused() -> None:
    environ = {name: value for name, value in env.OPENMPI.items() if name.startswith("OMPI_COMM")}
    with pytest.raises(TopoutError, match="nothing names the job"):
        detect_allocation(environ)


PROXY = "/usr/bin/hydra_pmi_proxy --control-port n1:39925 --rmk slurm --launcher slurm --proxy-id -1".split()
SHELL = ["/bin/sh", "-c", "topout run train.py --control-port"]
INTEL = "hydra_bstrap_proxy --upstream-host n1 --upstream-port 40943 --pgid 0 --tree-width 16 --tree-level 1".split()
BELOW = "hydra_bstrap_proxy --upstream-host n7 --upstream-port 40943 --pgid 0 --tree-width 16 --tree-level 2".split()


@pytest.mark.parametrize(
    ("environ", "parents", "name", "head"),
    [
        ({}, [SHELL, PROXY], "n1:39925", "n1"),
        ({}, [SHELL], None, None),
        ({"I_MPI_HYDRA_UUID": "9d260000-7c26"}, [INTEL], "9d260000-7c26", "n1"),
        ({"I_MPI_HYDRA_UUID": "9d260000-7c26"}, [BELOW], "9d260000-7c26", None),
        ({"MPISPAWN_MPIRUN_ID": "4242", "MPISPAWN_MPIRUN_HOST": "n1"}, [], "4242", "n1"),
    ],
)
def test_the_proxy_of_mpiexec_tells_the_job_and_its_host(
    environ: dict[str, str], parents: list[list[str]], name: str | None, head: str | None
) -> None:
    assert hydra._name_and_head(environ, parents) == (name, head)


def test_mvapich_is_found_by_its_own_variables() -> None:
    names = {"RANK": "1", "SIZE": "4", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}
    found = detect_allocation({f"MV2_COMM_WORLD_{name}": value for name, value in names.items()})
    assert found is not None
    assert found.task == Task(rank=1, world_size=4, local_rank=1, local_size=2)


@pytest.mark.parametrize("name", ["PMIX_RANK", "PMI_RANK"])
def test_a_rank_of_an_unknown_launcher_does_not_train_alone(name: str) -> None:
    with pytest.raises(TopoutError) as caught:
        detect_allocation({name: "10"})
    assert caught.value.problem == "This process is rank 10 of a launcher that topout does not know."
    assert detect_allocation({name: "0"}) is None, "a shell that srun started has rank 0 as well"


def test_one_may_say_whom_to_believe() -> None:
    both = {**env.SLURM_BATCH, "LSB_JOBID": "9", "LSB_MCPU_HOSTS": "a1 2"}
    found = detect_allocation({**both, "TOPOUT_SCHEDULER": "lsf"})
    assert found is not None
    assert found.hosts == ("a1",)
    assert detect_allocation({**both, "TOPOUT_SCHEDULER": "local"}) is None
    with pytest.raises(TopoutError, match="does not run under PBS"):
        detect_allocation({**both, "TOPOUT_SCHEDULER": "pbs"})
    with pytest.raises(TopoutError, match="There is no slrm"):
        detect_allocation({**both, "TOPOUT_SCHEDULER": "slrm"})


def test_a_package_from_outside_may_be_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    condor = ModuleType("condor")
    condor.TITLE = "HTCondor"  # type: ignore[attr-defined]
    condor.detect = lambda environ: Allocation(scheduler="condor", job_id=environ["JOB"])  # type: ignore[attr-defined]
    point = EntryPoint(name="condor", value="condor", group="topout.launch.schedulers")
    monkeypatch.setitem(sys.modules, "condor", condor)
    monkeypatch.setattr(plugin, "outside_plugins", lambda package: [point] if package == point.group else [])
    found = detect_allocation({"TOPOUT_SCHEDULER": "condor", "JOB": "5"})
    assert found == Allocation(scheduler="condor", job_id="5")
    condor.rank_variables = lambda rank, world: {"_CONDOR_PROCNO": str(rank.rank)}  # type: ignore[attr-defined]
    rank = Rank(rank=1, local_rank=1, node_rank=0, host="n1", cores=(0,), num_threads=1)
    host = Host(name="n1", cores=(), memory_bytes=1)
    world = World(hosts=(host,), ranks=(rank,), master_address="10.0.0.1", master_port=1)
    variables = rank_environment(rank, world, RunSpec(), 9, run=None, inherited={}, scheduler="condor")
    assert variables["_CONDOR_PROCNO"] == "1"


def test_several_tasks_with_a_world_of_one_are_an_error() -> None:
    for environ in (env.SLURM_TASK, env.SLURM_BATCH, env.OPENMPI):
        with pytest.raises(TopoutError) as caught:
            check_world(detect_allocation(environ), 1)
        assert "2 tasks" in caught.value.problem
        assert "-n 2" in caught.value.do
        check_world(detect_allocation(environ), 2)


def test_a_single_task_may_be_a_world_of_one() -> None:
    check_world(None, 1)
    check_world(detect_allocation(env.SLURM_SINGLE_TASK), 1)
    alone = {name: value for name, value in env.SLURM_SALLOC.items() if name != "SLURM_NTASKS"}
    check_world(detect_allocation(alone), 1)


def test_detection_imports_only_the_plugin_it_needs() -> None:
    program = (
        "import sys; from topout.launch.detect import detect_allocation;"
        "detect_allocation({'SLURM_JOB_ID': '1', 'SLURM_JOB_NODELIST': 'n[1-2]'});"
        "print(*sorted(name for name in sys.modules if name.startswith('topout.launch.schedulers.')),"
        "*(name for name in ('importlib.metadata', 'asyncio', 'torch', 'tempfile') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["topout.launch.schedulers.slurm"]
