"""From launchers that have arrived to ranks: numbered host by host, as many as asked, and nothing silently wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topout.host.bindings_report import bindings_warnings
from topout.launch.allocation import Allocation
from topout.launch.detect import check_world
from topout.launch.member import Member
from topout.launch.roster import make_roster
from topout.schema.errors import TopoutError
from topout.schema.spec import RunSpec
from topout.schema.world import Core, Host

SLURM = Allocation(scheduler="slurm", job_id="1", hosts=("n1", "n2"))


def host(name: str, *, cores: int = 4, gpus: int = 0, address: str | None = None, ids: tuple[str, ...] = ()) -> Host:
    return Host(
        name=name,
        cores=tuple(Core(index=index, physical=index, socket=0, numa=0) for index in range(cores)),
        memory_bytes=1,
        gpus=("H200",) * gpus,
        gpu_ids=ids,
        address=address or f"10.0.0.{name[-1]}",
    )


def hosts(count: int, **more) -> list[Member]:
    """One launcher for each host, as a head starts them."""
    return [Member(number=number, host=host(f"n{number + 1}", **more)) for number in range(count)]


def tasks(*names: str, **more) -> list[Member]:
    """One launcher for each rank, as srun starts them; all see the whole host."""
    return [
        Member(number=rank, host=host(name, **more), granted=(0, 1, 2, 3), is_task=True)
        for rank, name in enumerate(names)
    ]


def places(roster) -> list[tuple[int, str, int, int]]:
    return [(rank.rank, rank.host, rank.node_rank, rank.local_rank) for rank in roster.world.ranks]


def test_ranks_are_numbered_host_by_host():
    roster = make_roster(RunSpec(per_node=2), hosts(2), SLURM)
    assert places(roster) == [(0, "n1", 0, 0), (1, "n1", 0, 1), (2, "n2", 1, 0), (3, "n2", 1, 1)]
    assert {number: [rank.rank for rank in ranks] for number, ranks in roster.ranks_of.items()} == {
        0: [0, 1],
        1: [2, 3],
    }


def test_tasks_keep_the_rank_their_launcher_gave_them_also_when_it_deals_them_out_in_turn():
    roster = make_roster(RunSpec(), tasks("n1", "n2", "n1", "n2"), SLURM)
    assert places(roster) == [(0, "n1", 0, 0), (1, "n2", 1, 0), (2, "n1", 0, 1), (3, "n2", 1, 1)]
    cores = {rank.rank: rank.cores for rank in roster.world.ranks}
    assert set(cores[0]) & set(cores[2]) == set()


def test_those_that_are_left_are_numbered_anew():
    left = [member for member in tasks("n1", "n2", "n3") if member.number != 1]
    assert places(make_roster(RunSpec(), left, SLURM)) == [(0, "n1", 0, 0), (1, "n3", 1, 0)]


def test_the_schedulers_number_of_tasks_counts_unless_it_is_one_a_host():
    four = Allocation(scheduler="slurm", job_id="1", hosts=("n1", "n2"), num_tasks=4, tasks_per_host=(3, 1))
    assert [rank.host for rank in make_roster(RunSpec(), hosts(2), four).world.ranks] == ["n1", "n1", "n1", "n2"]
    one_each = Allocation(scheduler="slurm", job_id="1", hosts=("n1", "n2"), num_tasks=2, tasks_per_host=(1, 1))
    assert make_roster(RunSpec(), hosts(2, gpus=4), one_each).world.size == 8


@pytest.mark.parametrize(("counts", "left"), [((4, 3, 3), [3, 3]), ((4, 3, 1), [3, 1]), ((4, 1, 1), [1, 1])])
def test_hosts_that_are_left_keep_their_own_number_of_tasks(counts, left):
    three = Allocation(scheduler="slurm", job_id="1", hosts=("n1", "n2", "n3"), tasks_per_host=counts)
    roster = make_roster(RunSpec(), hosts(3)[1:], three)
    assert [len(roster.ranks_of[number]) for number in (1, 2)] == left


@given(st.integers(1, 5), st.integers(1, 40))
def test_any_number_of_ranks_is_shared_out_evenly(num_hosts, num_ranks):
    if num_ranks < num_hosts:
        return
    roster = make_roster(RunSpec(num_ranks=num_ranks, bind="none"), hosts(num_hosts))
    counts = [sum(rank.node_rank == node for rank in roster.world.ranks) for node in range(num_hosts)]
    assert sum(counts) == num_ranks
    assert max(counts) - min(counts) <= 1
    assert [rank.rank for rank in roster.world.ranks] == list(range(num_ranks))


def test_each_task_that_sees_its_own_gpu_alone_gets_device_0_and_a_warning():
    members = [
        Member(number=rank, host=host("n1", gpus=1, ids=(f"GPU-{rank}",)), granted=(rank,), is_task=True)
        for rank in range(2)
    ]
    roster = make_roster(RunSpec(), members, SLURM)
    assert [rank.gpu for rank in roster.world.ranks] == [0, 0]
    assert [rank.gpu_on_host for rank in roster.world.ranks] == [0, 1]
    assert len(roster.world.hosts[0].gpus) == 2
    assert "cuda:LOCAL_RANK fails" in roster.notes[-1]


def test_one_task_on_a_host_of_several_gpus_is_said_once_and_not_refused():
    (note,) = make_roster(RunSpec(), tasks("n1", "n2", gpus=4), SLURM).notes
    assert note.startswith("n1 shows 4 GPUs: one rank must drive them all itself, else 3 stand idle, as on 1 more ")
    assert "srun --ntasks-per-node=4" in note


@pytest.mark.parametrize(
    ("spec", "members"),
    [
        (RunSpec(per_node=1), tasks("n1", "n2", gpus=4)),
        (RunSpec(num_ranks=2), tasks("n1", "n2", gpus=4)),
        (RunSpec(), tasks("n1", "n2", gpus=1)),
        (RunSpec(), tasks("n1", "n2")),
        (RunSpec(per_node=1), hosts(2, gpus=4)),
    ],
)
def test_one_rank_a_host_that_is_meant_or_has_one_gpu_is_not_remarked_on(spec, members):
    assert make_roster(spec, members, SLURM).notes == ()


def tasks_with_gpus(*ids: tuple[str, ...]) -> list[Member]:
    """On a host of two domains, whose GPUs GPU-0 and GPU-1 sit in the first and the others in the second."""
    cores = tuple(Core(index=index, physical=index, socket=index // 2, numa=index // 2) for index in range(4))
    hosts = [
        Host(
            name="n1",
            cores=cores,
            memory_bytes=1,
            gpus=("H200",) * len(own),
            gpu_ids=own,
            gpu_numa=tuple(int(name in ("GPU-2", "GPU-3")) for name in own),
        )
        for own in ids
    ]
    return [Member(number=rank, host=host, granted=(0, 1, 2, 3), is_task=True) for rank, host in enumerate(hosts)]


def test_tasks_that_have_two_gpus_each_match_the_host_and_sit_beside_theirs():
    roster = make_roster(RunSpec(), tasks_with_gpus(("GPU-0", "GPU-1"), ("GPU-2", "GPU-3")), SLURM)
    assert [(rank.gpu, rank.gpu_on_host, rank.numa) for rank in roster.world.ranks] == [(0, 0, (0,)), (0, 2, (1,))]
    assert bindings_warnings(roster.world, {}) == ()


def test_a_gpu_that_two_tasks_see_is_still_an_error():
    with pytest.raises(TopoutError, match="2 tasks do not match the 3 GPUs"):
        make_roster(RunSpec(), tasks_with_gpus(("GPU-0", "GPU-1"), ("GPU-1", "GPU-2")), SLURM)


@pytest.mark.parametrize(
    ("spec", "members", "says", "do"),
    [
        (RunSpec(), [*hosts(1), Member(number=1, host=host("n1", address="10.0.0.9"))], "Two hosts", "hostnamectl"),
        (RunSpec(), tasks("n1", "n1", "n1", gpus=4), "3 tasks do not match the 4 GPUs of n1", "--per-node 3"),
        (RunSpec(), tasks(*["n1"] * 3, gpus=2), "3 tasks do not match the 2 GPUs of n1", "ask for 2 tasks"),
        (RunSpec(num_ranks=3), tasks("n1", "n2"), "-n 3 contradicts the 2 tasks", "leave out -n"),
        (
            RunSpec(num_ranks=3, origins={"num_ranks": "topout.toml:2"}),
            tasks("n1", "n2"),
            "num_ranks = 3 (topout.toml:2) contradicts the 2 tasks",
            "leave out num_ranks",
        ),
        (RunSpec(per_node=2), tasks("n1", "n2"), "--per-node 2 contradicts the tasks", "--ntasks-per-node=2"),
        (
            RunSpec(nodes=1, origins={"nodes": "command line"}),
            tasks("n1", "n2"),
            "--nodes 1 contradicts the tasks",
            "leave out --nodes",
        ),
        (RunSpec(num_ranks=3, per_node=2), hosts(2), "-n 3 and --per-node 2 contradict", "give one of the two"),
        (RunSpec(num_ranks=1), hosts(2), "-n 1 is fewer than one rank on each of 2 hosts", "--nodes 1"),
        (RunSpec(per_node=1000), hosts(1), "1000 ranks do not fit on n1", "try -n 4"),
        (RunSpec(bind="gpu"), hosts(1), "--bind gpu is not possible", "--bind numa"),
    ],
)
def test_what_cannot_be_right_is_an_error_in_three_parts(spec, members, says, do):
    with pytest.raises(TopoutError) as error:
        make_roster(spec, members, SLURM)
    assert says in error.value.problem
    assert error.value.why
    assert do in error.value.do


def test_as_many_tasks_as_were_asked_for_are_right():
    asked = RunSpec(per_node=2, nodes=1, num_ranks=2, origins={"nodes": "command line"})
    assert make_roster(asked, tasks("n1", "n1"), SLURM).world.size == 2
    # of a file that is for whoever submits
    assert make_roster(RunSpec(nodes=4, origins={"nodes": "topout.toml:1"}), tasks("n1", "n2"), SLURM).world.size == 2


@pytest.mark.parametrize("spec", [RunSpec(num_ranks=4), RunSpec(num_ranks=4, per_node=2), RunSpec()])
def test_a_host_that_is_left_keeps_its_ranks(spec):
    roster = make_roster(spec, hosts(2)[1:], SLURM, {0: 2, 1: 2})
    assert places(roster) == [(0, "n2", 0, 0), (1, "n2", 0, 1)]


def test_a_task_that_is_left_makes_a_smaller_world():
    roster = make_roster(RunSpec(num_ranks=2, per_node=1), tasks("n1", "n2")[:1], SLURM, {0: 1, 1: 1})
    assert places(roster) == [(0, "n1", 0, 0)]


def test_several_tasks_with_a_world_of_one_are_an_error():
    four = Allocation(scheduler="slurm", job_id="1", hosts=("n1",), num_tasks=4)
    with pytest.raises(TopoutError, match="This job has 4 tasks, and the world would be 1 rank"):
        check_world(four, make_roster(RunSpec(num_ranks=1), hosts(1), four).world.size)


def test_a_host_of_one_core_runs_and_says_so():
    roster = make_roster(RunSpec(num_ranks=2), hosts(1, cores=1))
    assert [rank.cores for rank in roster.world.ranks] == [(0,), (0,)]
    assert "2 ranks on one core" in " ".join(roster.notes)
