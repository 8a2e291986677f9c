"""Each law by itself, with numbers that can be checked by hand."""

from dataclasses import replace

import numpy as np
import pytest

from topout.study.anchor import cpu_factor
from topout.study.collectives import allreduce_s, halving_s, quickest_s, ring_s, tree_s
from topout.study.curve import own_error
from topout.study.job import Compute, Gradients, Input, Job
from topout.study.negotiation import negotiation_s
from topout.study.step_model import Step, crowded_s, crowding_s, expected_step, group_bytes, last_group_s, ready
from topout.study.storage import cached_share, samples_per_s
from topout.study.stragglers import expected_maximum, split_spread
from topout.study.system import Link, LocalStorage, SharedStorage, System

LINK = Link(latency_s=1e-3, bytes_per_s=1e9)
SYSTEM = System(
    title="four a node",
    nodes=1000,
    ranks_per_node=4,
    inside=Link(latency_s=1e-3, bytes_per_s=10e9),
    between=Link(latency_s=1e-3, bytes_per_s=1e9, links=2),
    shared_storage=SharedStorage(bytes_per_s=10e9, opens_per_s=50e3, client_bytes_per_s=1e9),
    local_storage=LocalStorage(bytes_per_s=2e9, bytes=100e9),
)
FILES = Input(samples=64, source="shared", sample_bytes=100e3, opens_per_sample=1, dataset_bytes=1e12)
COMPUTING = Job(
    title="",
    compute=Compute(forward_s=0.010, backward_s=0.020, cores=1.0),
    gradients=Gradients(bytes=1e6, tensors=1, groups=1),
    input=Input(samples=1),
)
FREE = Link(latency_s=1e-9, bytes_per_s=1e15)
CROWDED = System(title="", nodes=1, ranks_per_node=4, cores=2, inside=FREE, between=FREE)


def test_a_ring_of_four_moves_one_and_a_half_times_the_bytes():
    assert ring_s(1e9, 4, 0.0, 1e9) == pytest.approx(1.5)
    # six messages one after another, and the last is noticed
    assert ring_s(0, 4, 1e-3, 1e9) == pytest.approx(7e-3)
    # in large ones a segment travels while another is handled
    assert ring_s(1e9, 4, 1e-3, 1e9) == pytest.approx(1.501)


def test_halving_and_trees_need_as_many_messages_as_the_logarithm():
    assert halving_s(0, 1024, 1e-3, 1e9) == pytest.approx(20e-3)
    assert tree_s(0, 1024, 1e-3, 1e9) == pytest.approx(20e-3)


def test_one_rank_sends_nothing():
    assert ring_s(1e9, 1, 1e-3, 1e9) == halving_s(1e9, 1, 1e-3, 1e9) == tree_s(1e9, 1, 1e-3, 1e9) == 0


def test_the_quickest_is_never_slower_than_the_ring():
    for num in (2, 3, 8, 100, 4608):
        assert quickest_s(1e6, num, 1e-5, 1e9) <= ring_s(1e6, num, 1e-5, 1e9)


def test_between_nodes_all_links_of_a_node_carry():
    inside = ring_s(1e9, 4, 1e-3, 10e9)
    assert allreduce_s(1e9, 1, SYSTEM) == pytest.approx(inside)
    assert allreduce_s(1e9, 2, SYSTEM) == pytest.approx(inside + 1e-3 + 0.5)


def test_ranks_of_a_host_share_the_cores_that_carry_their_messages():
    link = Link(latency_s=1e-4, bytes_per_s=2e9, message_cpu_s=2e-4, byte_cpu_s=1e-9)
    host = System(title="", nodes=1, ranks_per_node=4, cores=2, inside=link, between=link)
    # six messages of 0.2 ms and 1.5 times 100 MB at 1 ns a byte are 151.2 ms of a core; four ranks have two cores
    assert allreduce_s(1e8, 1, host) == pytest.approx(4 * 0.1512 / 2)
    # two ranks: a core each, 100.4 ms of it; the link alone would take 50 ms
    assert allreduce_s(1e8, 1, replace(host, ranks_per_node=2)) == pytest.approx(0.1004)
    # three: a ring waits for the two on one core; four messages and 4/3 of the bytes are 134.1 ms
    assert allreduce_s(1e8, 1, replace(host, ranks_per_node=3)) == pytest.approx(2 * 0.13413, rel=1e-3)
    # cores enough: the link is the limit, 150 MB at 2 GB/s and a message
    assert allreduce_s(1e8, 1, replace(host, cores=64)) == pytest.approx(0.0751)
    assert allreduce_s(1e8, 1, replace(host, cores=0)) == pytest.approx(0.0751)


def test_what_slow_links_cost_processors_is_the_middle_of_what_is_possible():
    # nothing seen: between the doctor's and 2.25 times that
    assert cpu_factor(2.25, 0.010, None) == pytest.approx(1.5)
    assert cpu_factor(0.64, 0.010, None) == pytest.approx(0.8)
    # 14.4 ms were seen in all of backward: not more than 1.44 times
    assert cpu_factor(2.25, 0.010, 0.0144) == pytest.approx(1.2)
    # less was seen than the doctor says: all of that at most
    assert cpu_factor(2.25, 0.010, 0.005) == pytest.approx(0.5)
    assert cpu_factor(1.0, 0.0, 0.005) == 1.0


def test_ranks_that_need_more_cores_than_their_node_has_take_longer():
    job, host = COMPUTING, CROWDED
    # four ranks on two cores: twice as long
    assert crowded_s(job, host) == pytest.approx((0.010, 0.020))
    assert expected_step(job, host, 1).parts["cores"] == pytest.approx(0.030)
    assert crowded_s(job, replace(host, cores=4)) == crowded_s(job, replace(host, cores=0)) == (0.0, 0.0)
    # two cores each take four times as long; half a core is one for half of the time, and four halves fill two
    for cores, longer in ((2.0, (0.030, 0.060)), (0.5, (0.005, 0.010))):
        other = replace(job, compute=replace(job.compute, cores=cores))
        assert crowded_s(other, host) == pytest.approx(longer)
    # a quarter each: in forward they seldom meet (half full, 0.5 ** 1.449 / 2 / 0.5), in backward always
    seldom = replace(job, compute=replace(job.compute, cores=0.25))
    assert crowded_s(seldom, host) == pytest.approx((0.0025 * 0.36615, 0.005), rel=1e-4)
    copies = replace(job, compute=Compute(forward_s=0.010, backward_s=0.020, backward_cores=2.0))
    assert crowded_s(copies, host) == pytest.approx((0.0, 0.060))


def test_backward_lasts_until_the_cores_have_computed_and_carried():
    job, host = COMPUTING, CROWDED
    assert crowding_s(job, host, 1, 0.030) == pytest.approx(0.010)
    assert crowding_s(job, replace(host, cores=0), 1, 0.0) == 0.0
    # carrying takes 1.5 times 1 MB x 10 ns of each rank, 30 ms of two cores
    slow = replace(FREE, byte_cpu_s=1e-8)
    assert crowding_s(job, replace(host, inside=slow), 1, 0.030) == pytest.approx(0.040)
    assert crowding_s(job, replace(host, inside=slow), 1, 0.090) == 0.0
    # a second node: a quarter of 1 MB for each of its ranks, 5 ms of two cores
    assert crowding_s(job, replace(host, between=slow), 2, 0.030) == pytest.approx(0.015)


def test_the_model_doubts_what_is_not_computing():
    # a tenth of the step is not computing: a third of it, and one per cent from run to run
    assert own_error(Step({"compute": 0.9, "communication": 0.1}, 1)) == pytest.approx(np.hypot(0.01, 0.035))


def test_groups_travel_when_they_were_seen_to_be_complete():
    even = Gradients(bytes=8e6, tensors=4, groups=2)
    seen = replace(even, ready=(0.9, 1.0), shares=(0.75, 0.25))
    assert ready(even).tolist() == [0.2, 1.0]
    assert ready(seen).tolist() == [0.9, 1.0]
    assert group_bytes(seen) == [6e6, 2e6]
    # another number of groups than was seen: evenly again
    assert group_bytes(replace(seen, groups=4)) == [2e6] * 4
    assert ready(replace(seen, groups=1)).tolist() == [1.0]
    # complete after 9 and 10 ms; they take 6 and 2 ms, one after the other
    assert last_group_s(np.array([9.0, 10.0]), [6.0, 2.0], 0.0) == 17.0


def test_a_coordinator_reads_every_tensor_of_every_rank():
    gradients = Gradients(bytes=1e6, tensors=161, negotiation="coordinator", message_s=1e-6)
    assert negotiation_s(gradients, 100, SYSTEM) == pytest.approx(400 * 161e-6)
    bits = negotiation_s(replace(gradients, negotiation="bitvector"), 100, SYSTEM)
    assert bits == pytest.approx(9 * (1e-3 + 161 / 8 / 1e9))
    assert negotiation_s(replace(gradients, negotiation="none"), 100, SYSTEM) == 0


def test_the_expected_maximum_is_that_of_drawn_numbers():
    random = np.random.default_rng(0)
    for num in (8, 64, 1000):
        drawn = random.standard_normal((2000, num)).max(axis=1).mean()
        assert expected_maximum(num) == pytest.approx(drawn, rel=0.02)
    assert expected_maximum(1) == 0


def test_spread_between_ranks_is_told_from_spread_between_steps():
    random = np.random.default_rng(1)
    ranks = 1 + 0.05 * random.standard_normal((200, 1))
    persistent, transient = split_spread(ranks * (1 + 0.02 * random.standard_normal((200, 400))))
    assert persistent == pytest.approx(0.05, rel=0.15)
    assert transient == pytest.approx(0.02, rel=0.05)


def test_steps_without_work_have_no_spread():
    assert split_spread(np.zeros((2, 10))) == (0.0, 0.0)


def test_one_node_reads_what_a_client_can_and_many_what_the_servers_can():
    assert samples_per_s(FILES, 1, SYSTEM) == pytest.approx(1e9 / 100e3, rel=0.01)
    # 50,000 opens a second are fewer than 10 GB/s of files of 100 KB
    assert samples_per_s(FILES, 500, SYSTEM) * 500 == pytest.approx(50e3, rel=0.01)


def test_processors_can_be_the_limit():
    assert samples_per_s(replace(FILES, loader_samples_per_s=100), 1, SYSTEM) == 400


def test_a_cache_grows_with_the_nodes_until_it_holds_all():
    assert cached_share(FILES, 1, SYSTEM) == pytest.approx(0.1)
    assert cached_share(FILES, 10, SYSTEM) == cached_share(FILES, 20, SYSTEM) == 1
    cached = replace(FILES, source="cached")
    # each of ten nodes reads faster than one alone: faster than linear
    assert samples_per_s(cached, 10, SYSTEM) > 1.5 * samples_per_s(cached, 1, SYSTEM)
