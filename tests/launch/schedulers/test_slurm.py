"""Slurm's variables are read for what they say in each kind of step."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.schedulers import environments as env
from topout.launch.allocation import Allocation, Task
from topout.launch.detect import detect_allocation
from topout.launch.schedulers import slurm
from topout.schema.errors import TopoutError
from topout.schema.world import Host, Rank, World


def test_a_batch_script_is_no_task_although_it_has_a_procid() -> None:
    assert slurm.detect(env.SLURM_BATCH) == Allocation(
        scheduler="slurm", job_id="2", hosts=("n1", "n2"), num_tasks=2, tasks_per_host=(1, 1)
    )


def test_a_process_of_srun_is_a_task_and_the_first_host_leads() -> None:
    assert slurm.detect(env.SLURM_TASK) == Allocation(
        scheduler="slurm",
        job_id="2.0",
        hosts=("n1", "n2"),
        num_tasks=2,
        tasks_per_host=(1, 1),
        task=Task(rank=1, world_size=2, local_rank=0, local_size=1, node_rank=1),
        head="n1",
    )


def test_a_step_of_one_task_starts_the_ranks_itself_on_its_own_hosts_only() -> None:
    assert slurm.detect(env.SLURM_SINGLE_TASK) == Allocation(scheduler="slurm", job_id="2.1", hosts=("n1",))


def test_an_allocation_without_a_step_is_used_from_the_login_node() -> None:
    granted = slurm.detect(env.SLURM_SALLOC)
    assert granted is not None
    assert (granted.job_id, granted.hosts, granted.task) == ("3", ("n1", "n2"), None)


def test_the_step_of_an_interactive_shell_is_numeric_and_still_no_task() -> None:
    granted = slurm.detect(env.SLURM_INTERACTIVE_STEP)
    assert granted is not None
    assert (granted.job_id, granted.hosts, granted.num_tasks, granted.task) == ("3", ("n1", "n2"), 2, None)


@pytest.mark.parametrize("is_at_terminal", [True, False])
def test_a_shell_of_srun_pty_is_no_task_and_tasks_started_from_it_are(
    monkeypatch: pytest.MonkeyPatch, is_at_terminal: bool
) -> None:
    # a further srun's tasks inherit SLURM_PTY_PORT, but Slurm gives them no terminal
    monkeypatch.setattr(slurm, "has_terminal", lambda: is_at_terminal)
    granted = slurm.detect(env.SLURM_PTY)
    assert granted is not None
    assert (granted.task is None) is is_at_terminal
    assert granted.hosts == ("n1", "n2")
    assert granted.num_tasks == 2


def test_a_heterogeneous_job_is_started_by_srun_alone() -> None:
    with pytest.raises(TopoutError) as caught:
        slurm.detect(env.SLURM_HET_BATCH)
    assert "2 parts" in caught.value.problem
    assert "--het-group=0-1" in caught.value.do
    granted = slurm.detect(env.SLURM_HET_TASK)
    assert granted is not None
    assert granted.job_id == "4.0"
    assert granted.task == Task(rank=2, world_size=3, local_rank=1, local_size=2, node_rank=1)


def test_tasks_of_an_array_are_told_apart() -> None:
    # recorded: both have SLURM_ARRAY_JOB_ID=14, and numbers of their own
    ids = [slurm.job_id({"SLURM_JOB_ID": str(number), "SLURM_ARRAY_JOB_ID": "14"}) for number in (14, 15)]
    assert ids == ["14", "15"]


def test_without_a_number_of_tasks_processors_are_not_taken_for_tasks() -> None:
    # recorded: sbatch -N2 --exclusive sets SLURM_TASKS_PER_NODE=2(x2) and no SLURM_NTASKS
    environ = {name: value for name, value in env.SLURM_BATCH.items() if name != "SLURM_NTASKS"}
    granted = slurm.detect({**environ, "SLURM_TASKS_PER_NODE": "2(x2)"})
    assert granted is not None
    assert (granted.num_tasks, granted.tasks_per_host) == (None, None)


def test_uneven_tasks_are_counted_host_by_host() -> None:
    granted = slurm.detect({**env.SLURM_BATCH, "SLURM_NTASKS": "5", "SLURM_TASKS_PER_NODE": "4,1"})
    assert granted is not None
    assert (granted.num_tasks, granted.tasks_per_host) == (5, (4, 1))


def test_ranks_laid_out_by_a_file_follow_the_file(tmp_path: Path) -> None:
    # recorded: srun -m arbitrary with n2 first gives rank 0 to n2, SLURM_NODEID=1, and leaves node lists sorted
    path = tmp_path / "hosts"
    path.write_text("n2\nn1\n")
    environ = {**env.SLURM_TASK, "SLURM_DISTRIBUTION": "arbitrary", "SLURM_PROCID": "0"}
    granted = slurm.detect({**environ, "SLURM_HOSTFILE": str(path)})
    assert granted is not None
    assert (granted.hosts, granted.head) == (("n2", "n1"), "n2")
    assert granted.task is not None
    assert granted.task.node_rank == 0
    without = slurm.detect(environ)
    assert without is not None
    assert (without.hosts, without.head) == ((), None), "nobody knows where rank 0 is"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"SLURM_PROCID": "2"}, "SLURM_PROCID=2 and SLURM_STEP_NUM_TASKS=2"),
        ({"SLURM_PROCID": "one"}, "SLURM_PROCID=one is not a number"),
        ({"SLURM_STEP_NUM_TASKS": ""}, "SLURM_STEP_NUM_TASKS is not"),
        ({"SLURM_STEP_NUM_NODES": "3"}, "SLURM_STEP_NUM_NODES=3, and the node list has 2 hosts"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x2)"}, "SLURM_STEP_TASKS_PER_NODE=2(x2) contradicts"),
        ({"SLURM_STEP_NODELIST": ""}, "SLURM_STEP_NODELIST is not"),
        ({"SLURM_STEP_NODELIST": "n[1-"}, "character 2"),
    ],
)
def test_a_contradiction_is_named_with_its_variables(changes: dict[str, str], named: str) -> None:
    with pytest.raises(TopoutError) as caught:
        slurm.detect({**env.SLURM_TASK, **changes})
    assert named in caught.value.problem
    assert caught.value.exit_code == 3


def test_a_part_of_a_jobs_environment_is_no_job() -> None:
    with pytest.raises(TopoutError, match="SLURM_JOB_NODELIST is not"):
        detect_allocation({"SLURM_JOB_ID": "7"})


@pytest.mark.parametrize(
    ("variables", "num_gpus"),
    [
        ({}, None),
        ({"SLURM_GPUS_ON_NODE": "4"}, 4),
        ({"SLURM_GPUS_PER_NODE": "a100:4"}, 4),
        ({"SLURM_GPUS": "8"}, 4),
        ({"SLURM_GPUS": "8", "SLURM_GPUS_ON_NODE": "4"}, 4),
        ({"SLURM_GPUS": "5", "SLURM_GPUS_ON_NODE": "4"}, None),
        ({"SLURM_GPUS": "5"}, None),
    ],
)
def test_gpus_are_counted_where_all_hosts_have_the_same(variables: dict[str, str], num_gpus: int | None) -> None:
    granted = slurm.detect({**env.SLURM_BATCH, **variables})
    assert granted is not None
    assert granted.gpus_per_host == num_gpus


def test_the_starter_names_hosts_and_gpus_and_drops_what_shapes_steps() -> None:
    granted = Allocation(scheduler="slurm", job_id="2", hosts=("n1", "n2", "n3"), gpus_per_host=4)
    (words,) = slurm.start_commands(granted, ["agent", "--now"], num_hosts=2)
    assert words[0] == "srun"
    assert words[-2:] == ["agent", "--now"]
    assert {"--nodes=2", "--ntasks=2", "--nodelist=n1,n2", "--gpus-per-node=4", "--overlap"} <= set(words)
    around = {**env.SLURM_TASK, "SRUN_CPUS_PER_TASK": "2", "SLURM_CONF": "/etc/slurm.conf", "PATH": "/bin"}
    kept = slurm.start_environment(around)
    dropped = {name for name in around if name not in kept}
    assert {"SLURM_CPU_BIND", "SLURM_CPU_BIND_LIST", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"} <= dropped
    assert {"SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_DISTRIBUTION", "SLURM_NNODES"} <= dropped
    assert {"SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_CONF", "PATH"} <= set(kept)


def test_a_rank_reads_the_truth_about_itself_in_slurms_words() -> None:
    hosts = tuple(Host(name=name, cores=(), memory_bytes=0) for name in ("n1", "n2"))
    places = [("n1", 0, 0), ("n1", 0, 1), ("n2", 1, 0)]
    ranks = tuple(
        Rank(rank=rank, local_rank=local, node_rank=node, host=host, cores=(0, 1), num_threads=2)
        for rank, (host, node, local) in enumerate(places)
    )
    world = World(hosts=hosts, ranks=ranks, master_address="n1", master_port=1)
    variables = slurm.rank_variables(ranks[2], world)
    # what Slurm itself would say to the third task of such a step
    assert (
        variables.items()
        >= {
            "SLURM_PROCID": "2",
            "SLURM_LOCALID": "0",
            "SLURM_NODEID": "1",
            "SLURM_GTIDS": "2",
            "SLURM_NTASKS": "3",
            "SLURM_STEP_NUM_TASKS": "3",
            "SLURM_TASKS_PER_NODE": "2,1",
            "SLURM_NNODES": "2",
            "SLURM_CPUS_PER_TASK": "2",
        }.items()
    )
    read = slurm.detect({**env.SLURM_TASK, **variables})
    assert read is not None
    assert read.task == Task(rank=2, world_size=3, local_rank=0, local_size=1, node_rank=1)


def test_the_ranks_of_a_large_job_are_counted_once_for_each_rank_that_is_told() -> None:
    class Counted(tuple[Rank, ...]):
        num_walks = 0

        def __iter__(self) -> Iterator[Rank]:
            Counted.num_walks += 1
            return super().__iter__()

    hosts = tuple(Host(name=f"n{number}", cores=(), memory_bytes=0) for number in range(100))
    ranks = Counted(
        Rank(rank=number, local_rank=0, node_rank=number, host=host.name, cores=(0,), num_threads=1)
        for number, host in enumerate(hosts)
    )
    world = World(hosts=hosts, ranks=ranks, master_address="n0", master_port=1)
    assert slurm.rank_variables(ranks[7], world)["SLURM_TASKS_PER_NODE"] == "1(x100)"
    assert Counted.num_walks < 5
