"""Cores are shared out so that no rank is slow by birth."""

from hypothesis import given
from hypothesis import strategies as st

from topout.launch.binding import bind
from topout.schema.world import Core, Host


def host(*numa_sizes: int, threads: int = 1, gpus: int = 0) -> Host:
    """Physical cores 0.. over NUMA domains; second hyper-threads are numbered after all first ones, as Linux does."""
    domains = [numa for numa, size in enumerate(numa_sizes) for _ in range(size)]
    cores = [
        Core(index=thread * len(domains) + physical, physical=physical, socket=numa, numa=numa)
        for thread in range(threads)
        for physical, numa in enumerate(domains)
    ]
    return Host(name="n1", cores=tuple(cores), memory_bytes=1, gpus=("H200",) * gpus)


def cores_of(binding) -> list[tuple[int, ...]]:
    return [rank.cores for rank in binding.ranks]


def test_two_ranks_halve_four_cores():
    binding = bind(host(4), 2)
    assert cores_of(binding) == [(0, 1), (2, 3)]
    assert [rank.num_threads for rank in binding.ranks] == [2, 2]
    assert binding.notes == ()


def test_hyper_threads_go_with_their_core_and_count_no_thread():
    binding = bind(host(4, threads=2), 2)
    assert cores_of(binding) == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert [rank.num_threads for rank in binding.ranks] == [2, 2]


def test_a_rank_stays_in_its_numa_domain_when_ranks_divide_evenly():
    assert cores_of(bind(host(3, 3), 4)) == [(0, 1), (2,), (3, 4), (5,)]


def test_all_ranks_get_as_many_threads_as_the_smallest_share():
    binding = bind(host(4), 3)
    assert cores_of(binding) == [(0, 1), (2,), (3,)]
    assert [rank.num_threads for rank in binding.ranks] == [1, 1, 1]


def test_more_ranks_than_cores_share_them_in_turn_and_say_so():
    binding = bind(host(2), 5)
    assert cores_of(binding) == [(0,), (1,), (0,), (1,), (0,)]
    assert "5 ranks on 2 cores" in binding.notes[0]


def test_ranks_beyond_physical_cores_take_hyper_threads_and_say_so():
    binding = bind(host(2, threads=2), 4)
    assert sorted(cores_of(binding)) == [(0,), (1,), (2,), (3,)]
    assert "2 physical cores" in binding.notes[0]


def test_a_control_group_that_grants_less_limits_threads():
    binding = bind(host(8), 2, cpu_limit=3.0)
    assert [rank.num_threads for rank in binding.ranks] == [1, 1]
    assert "grants 3 cores" in binding.notes[0]


def test_unbound_ranks_still_share_the_threads():
    binding = bind(host(8), 2, is_bound=False)
    assert cores_of(binding) == [(), ()]
    assert [rank.num_threads for rank in binding.ranks] == [4, 4]


def test_each_rank_has_the_gpu_of_its_number():
    assert [rank.gpu for rank in bind(host(8, gpus=2), 3).ranks] == [0, 1, None]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 36), st.integers(1, 2))
def test_shares_are_disjoint_and_never_empty(numa_sizes, num_ranks, threads):
    machine = host(*numa_sizes, threads=threads)
    binding = bind(machine, num_ranks)
    taken = [core for cores in cores_of(binding) for core in cores]
    assert all(cores_of(binding))
    if num_ranks <= sum(numa_sizes):
        assert sorted(taken) == sorted(core.index for core in machine.cores)
