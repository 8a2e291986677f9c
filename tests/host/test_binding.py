"""Cores are shared out so that no rank is slow by birth."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.host.sys_trees import NAMES, plant
from topout.host.binding import bind, check_gpus, physical_cores, ranks_per_host
from topout.host.topology import read_host
from topout.schema.errors import TopoutError
from topout.schema.spec import BIND_POLICIES, PER_NODE
from topout.schema.world import Core, Host, Nic


def host(*numa_sizes: int, threads: int = 1, gpus: int = 0, numa_a_socket: int = 1, **more) -> Host:
    """Physical cores 0.. over NUMA domains; second hyper-threads are numbered after all first ones, as Linux does."""
    domains = [numa for numa, size in enumerate(numa_sizes) for _ in range(size)]
    cores = [
        Core(index=thread * len(domains) + physical, physical=physical, socket=numa // numa_a_socket, numa=numa)
        for thread in range(threads)
        for physical, numa in enumerate(domains)
    ]
    return Host(name="n1", cores=tuple(cores), memory_bytes=1, gpus=("H200",) * gpus, **more)


def cores_of(binding) -> list[tuple[int, ...]]:
    return [rank.cores for rank in binding.ranks]


def threads_of(binding) -> list[int]:
    return [rank.num_threads for rank in binding.ranks]


# evenly


def test_two_ranks_halve_four_cores():
    binding = bind(host(4), 2)
    assert cores_of(binding) == [(0, 1), (2, 3)]
    assert threads_of(binding) == [2, 2]
    assert binding.notes == ()


def test_hyper_threads_go_with_their_core_and_count_no_thread():
    binding = bind(host(4, threads=2), 2)
    assert cores_of(binding) == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert threads_of(binding) == [2, 2]


def test_a_rank_stays_in_its_numa_domain_when_ranks_divide_evenly():
    binding = bind(host(3, 3), 4)
    assert cores_of(binding) == [(0, 1), (2,), (3, 4), (5,)]
    assert [rank.numa for rank in binding.ranks] == [(0,), (0,), (1,), (1,)]


def test_all_ranks_get_as_many_threads_as_the_smallest_share():
    binding = bind(host(4), 3)
    assert cores_of(binding) == [(0, 1), (2,), (3,)]
    assert threads_of(binding) == [1, 1, 1]


def test_more_ranks_than_cores_share_them_in_turn_and_say_so():
    binding = bind(host(2), 5)
    assert cores_of(binding) == [(0,), (1,), (0,), (1,), (0,)]
    assert "5 ranks on 2 cores" in binding.notes[0]


def test_ranks_beyond_physical_cores_take_hyper_threads_and_say_so():
    binding = bind(host(2, threads=2), 4)
    assert sorted(cores_of(binding)) == [(0,), (1,), (2,), (3,)]
    assert "2 physical cores" in binding.notes[0]


def test_a_control_group_that_grants_less_limits_threads():
    binding = bind(host(8, cpu_limit=3.0), 2)
    assert threads_of(binding) == [1, 1]
    assert "grants 3 cores" in binding.notes[0]


# policies


def test_unbound_ranks_still_share_the_threads():
    binding = bind(host(8), 2, policy="none")
    assert cores_of(binding) == [(), ()]
    assert [rank.numa for rank in binding.ranks] == [(), ()]
    assert threads_of(binding) == [4, 4]


def test_node_gives_every_rank_all_cores_but_not_all_threads():
    binding = bind(host(2, 2), 2, policy="node")
    assert cores_of(binding) == [(0, 1, 2, 3)] * 2
    assert threads_of(binding) == [2, 2]
    assert binding.ranks[0].numa == (0, 1)


def test_socket_gives_each_rank_a_whole_socket():
    two_sockets = host(2, 2, 2, 2, numa_a_socket=2)
    assert cores_of(bind(two_sockets, 2, policy="socket")) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert cores_of(bind(two_sockets, 1, policy="socket")) == [(0, 1, 2, 3)]
    assert cores_of(bind(two_sockets, 3, policy="socket")) == [(0, 1), (2, 3), (4, 5, 6, 7)]


def test_numa_spreads_fewer_ranks_over_the_domains():
    assert cores_of(bind(host(2, 2, 2, 2), 2, policy="numa")) == [(0, 1), (4, 5)]
    assert cores_of(bind(host(2, 2), 4, policy="numa")) == [(0,), (1,), (2,), (3,)]


def test_core_gives_one_physical_core_each_and_spreads_them():
    binding = bind(host(4, 4, threads=2), 4, policy="core")
    assert cores_of(binding) == [(0, 8), (2, 10), (4, 12), (6, 14)]
    assert threads_of(binding) == [1] * 4


def test_a_policy_that_is_impossible_is_an_error_in_three_parts():
    for policy, num_ranks, machine in (
        ("gpu", 1, host(4)),
        ("gpu", 3, host(2, 2, gpus=2, gpu_numa=(0, 1))),
        ("gpu", 2, host(2, 2, gpus=2, gpu_numa=(None, None))),
        ("gpu", 2, host(2, 2, gpus=2, gpu_numa=(0, 5))),
        ("core", 5, host(4, threads=2)),
    ):
        with pytest.raises(TopoutError) as caught:
            bind(machine, num_ranks, policy=policy)
        assert caught.value.problem.startswith(f"--bind {policy} is not possible")
        assert caught.value.why
        assert caught.value.do.startswith(("try ", "ask "))
        assert caught.value.exit_code == 2


# GPUs


def test_each_rank_has_the_gpu_of_its_number():
    assert [rank.gpu for rank in bind(host(8, gpus=2), 3).ranks] == [0, 1, None]


def test_ranks_sit_in_the_domain_of_their_gpu():
    machine = host(4, 4, gpus=2, gpu_numa=(1, 0))
    assert cores_of(bind(machine, 2)) == [(4, 5, 6, 7), (0, 1, 2, 3)]
    assert cores_of(bind(machine, 2, policy="gpu")) == [(4, 5, 6, 7), (0, 1, 2, 3)]


def test_a_domain_without_a_gpu_goes_to_the_gpus_of_its_socket():
    machine = host(2, 2, 2, 2, gpus=2, gpu_numa=(1, 2), numa_a_socket=2)
    assert cores_of(bind(machine, 2)) == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_a_single_rank_keeps_all_cores_unless_told_otherwise():
    machine = host(2, 2, gpus=1, gpu_numa=(1,))
    assert cores_of(bind(machine, 1)) == [(0, 1, 2, 3)]
    assert cores_of(bind(machine, 1, policy="gpu")) == [(2, 3)]


def test_where_the_gpus_sit_is_unknown_cores_are_shared_out_evenly():
    assert cores_of(bind(host(2, 2, gpus=2, gpu_numa=(None, None)), 2)) == [(0, 1), (2, 3)]


def test_fewer_ranks_than_gpus_leave_no_domain_of_gpus_empty():
    machine = host(4, 4, gpus=4, gpu_numa=(1, 1, 0, 0))
    assert cores_of(bind(machine, 2)) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert cores_of(bind(machine, 2, policy="gpu")) == [(4, 5), (6, 7)]


def test_on_a_machine_of_one_domain_gpus_are_near_everywhere():
    assert cores_of(bind(host(4, gpus=2, gpu_numa=(None, None)), 2, policy="gpu")) == [(0, 1), (2, 3)]


def test_ranks_and_gpus_that_do_not_match_are_named():
    machine = host(8, gpus=4)
    assert check_gpus(machine, 4) is None
    assert check_gpus(host(8), 3) is None
    assert "8 ranks on n1, which shows 4 GPUs" in check_gpus(machine, 8)
    assert "2 of the 4 GPUs of n1 stand idle" in check_gpus(machine, 2)
    assert "one rank must drive them all" in check_gpus(machine, 1)


# tasks of a scheduler


def test_what_a_scheduler_gave_each_task_is_left_so():
    binding = bind(host(8), 2, granted=[(6, 7), (0, 1, 2)])
    assert cores_of(binding) == [(6, 7), (0, 1, 2)]
    assert threads_of(binding) == [2, 2]


def test_tasks_that_share_cores_are_bound():
    assert cores_of(bind(host(4), 2, granted=[(0, 1, 2, 3)] * 2)) == [(0, 1), (2, 3)]
    assert cores_of(bind(host(4), 2, granted=[(0, 1), (1, 2)])) == [(0, 1), (2, 3)]


def test_a_policy_that_was_asked_for_wins_over_the_schedulers():
    assert cores_of(bind(host(2, 2), 2, policy="numa", granted=[(0,), (1, 2, 3)])) == [(0, 1), (2, 3)]


def test_tasks_on_hyper_threads_of_one_core_are_left_so_and_named():
    binding = bind(host(2, threads=2), 2, granted=[(0,), (2,)])
    assert cores_of(binding) == [(0,), (2,)]
    assert "some share one" in binding.notes[0]


# networks


def test_each_rank_has_the_nearest_nic_and_neighbours_take_turns():
    nics = tuple(Nic(name=f"ib{n}", speed_bits_per_s=2e11, numa=n // 2, hca=f"mlx5_{n}:1") for n in range(4))
    binding = bind(host(2, 2, nics=nics), 4)
    assert [rank.nic.name for rank in binding.ranks] == ["ib0", "ib1", "ib2", "ib3"]
    assert bind(host(2, 2, nics=nics), 1).ranks[0].nic is None
    assert bind(host(2, 2, nics=nics[:1]), 2).ranks[0].nic is None


def test_the_nic_is_near_the_gpu_where_there_is_one():
    nics = tuple(Nic(name=f"eth{n}", speed_bits_per_s=1e11, numa=n) for n in range(2))
    machine = host(2, 2, gpus=2, gpu_numa=(1, 0), nics=nics)
    assert [rank.nic.name for rank in bind(machine, 2, policy="numa").ranks] == ["eth1", "eth0"]


# how many


def test_ranks_for_each_thing_that_a_host_has():
    machine = host(2, 2, 2, 2, threads=2, gpus=3, numa_a_socket=2)
    expected = {"gpu": 3, "socket": 2, "numa": 4, "core": 8, "node": 1}
    assert {kind: ranks_per_host(machine, kind) for kind in PER_NODE} == expected
    assert ranks_per_host(machine, 7) == 7
    assert ranks_per_host(machine, None) == 3
    assert ranks_per_host(host(2, 2), None) == 2


def test_one_rank_a_gpu_on_a_host_without_one_is_an_error():
    with pytest.raises(TopoutError, match="--per-node gpu leaves no rank for n1"):
        ranks_per_host(host(4), "gpu")
    with pytest.raises(TopoutError, match="neither a number nor something a host has"):
        ranks_per_host(host(4), "rack")


# machines that were written down


def bound(tree, tmp_path, num_ranks=None, **more):
    machine = read_host({}, *plant(tree, tmp_path))
    return bind(machine, num_ranks or ranks_per_host(machine, None), **more)


def test_eight_gpus_in_every_second_domain_share_all_cores(tmp_path):
    binding = bound("epyc_8gpu", tmp_path)
    assert [rank.numa for rank in binding.ranks] == [(2, 3)] * 2 + [(0, 1)] * 2 + [(6, 7)] * 2 + [(4, 5)] * 2
    assert binding.ranks[0].cores == (*range(32, 40), *range(48, 56), *range(160, 168), *range(176, 184))
    assert threads_of(binding) == [16] * 8
    assert [rank.nic.hca for rank in binding.ranks] == [f"mlx5_{n}:1" for n in (0, 0, 1, 1, 2, 2, 3, 3)]


def test_six_gpus_on_two_sockets_get_seven_cores_each(tmp_path):
    binding = bound("power9_6gpu", tmp_path)
    assert [rank.cores[0] for rank in binding.ranks] == [0, 28, 56, 88, 116, 144]
    assert threads_of(binding) == [7] * 6
    assert [rank.nic.numa for rank in binding.ranks] == [0, 0, 0, 8, 8, 8]


def test_eight_dies_out_of_order_get_the_cores_beside_them(tmp_path):
    binding = bound("mi250x", tmp_path)
    assert [rank.cores[0] for rank in binding.ranks] == [49, 57, 17, 25, 1, 9, 33, 41]
    assert threads_of(binding) == [7] * 8
    assert [rank.nic.name for rank in binding.ranks] == [f"hsn{n}" for n in (0, 0, 1, 1, 2, 2, 3, 3)]


def test_one_core_is_shared_by_all_ranks_of_a_container(tmp_path):
    binding = bound("one_core_container", tmp_path, 2)
    assert (cores_of(binding), threads_of(binding)) == ([(9,), (9,)], [1, 1])
    assert "2 ranks on one core" in binding.notes[0]


@pytest.mark.parametrize("tree", NAMES)
def test_every_policy_that_is_possible_keeps_to_the_granted_cores(tree, tmp_path):
    machine = read_host({}, *plant(tree, tmp_path))
    granted = {core.index for core in machine.cores}
    tried = 0
    for policy in BIND_POLICIES:
        for num_ranks in (1, 2, len(machine.gpus) or 3, 8):
            try:
                binding = bind(machine, num_ranks, policy=policy)
            except TopoutError as error:
                assert policy in ("gpu", "core"), error
                continue
            tried += 1
            assert len(binding.ranks) == num_ranks
            for rank in binding.ranks:
                assert set(rank.cores) <= granted
                assert bool(rank.cores) == (policy != "none")
                assert 1 <= rank.num_threads <= len(physical_cores(machine))
                assert set(rank.numa) == {core.numa for core in machine.cores if core.index in rank.cores}
    assert tried >= 4 * 5


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.integers(1, 36),
    st.integers(1, 2),
    st.sampled_from(["auto", "socket", "numa"]),
)
def test_shares_are_disjoint_and_never_empty(numa_sizes, num_ranks, threads, policy):
    machine = host(*numa_sizes, threads=threads)
    binding = bind(machine, num_ranks, policy=policy)
    taken = [core for cores in cores_of(binding) for core in cores]
    assert all(cores_of(binding))
    if num_ranks <= sum(numa_sizes) and policy == "auto":
        assert sorted(taken) == sorted(core.index for core in machine.cores)
    if len(taken) > len(set(taken)):
        assert "cores are shared" in binding.notes[0]


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4), st.lists(st.integers(0, 3), min_size=1, max_size=8), st.data()
)
def test_bound_to_gpus_no_two_ranks_share_a_core_while_there_are_enough(numa_sizes, gpu_numa, data):
    gpu_numa = tuple(domain % len(numa_sizes) for domain in gpu_numa)
    machine = host(*numa_sizes, gpus=len(gpu_numa), gpu_numa=gpu_numa)
    num_ranks = data.draw(st.integers(1, len(gpu_numa)))
    binding = bind(machine, num_ranks, policy="gpu")
    per_domain = {d: gpu_numa[:num_ranks].count(d) for d in set(gpu_numa[:num_ranks])}
    taken = [core for cores in cores_of(binding) for core in cores]
    if all(count <= numa_sizes[domain] for domain, count in per_domain.items()) or len(numa_sizes) == 1 >= num_ranks:
        assert len(taken) == len(set(taken))
    if len(numa_sizes) > 1:
        assert [rank.numa for rank in binding.ranks] == [(domain,) for domain in gpu_numa[:num_ranks]]


def test_a_host_that_shows_less_than_its_tasks_have_is_bound_afresh():
    machine = replace(host(4), cores=host(4).cores[:2])
    assert cores_of(bind(machine, 2, granted=[(0, 1), (2, 3)])) == [(0,), (1,)]
