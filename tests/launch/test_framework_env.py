"""Every rank finds its place in the variables of TensorFlow, Horovod and JAX."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import REPOSITORY
from topout.launch.framework_env import framework_defaults, framework_variables
from topout.schema.world import Host, Rank, World

SCRIPTS = REPOSITORY / "tests" / "scripts"


def world_of(per_host: list[int], ports: list[int] | None = None) -> World:
    """Hosts 10.0.0.1, 10.0.0.2, … with so many ranks each; rank n listens on port 20000 + n unless given."""
    places = [(node, local) for node, count in enumerate(per_host) for local in range(count)]
    ports = ports or [20_000 + number for number in range(len(places))]
    ranks = tuple(
        Rank(rank=n, local_rank=local, node_rank=node, host=f"n{node + 1}", cores=(), num_threads=4, port=ports[n])
        for n, (node, local) in enumerate(places)
    )
    hosts = tuple(
        Host(name=f"n{node}", cores=(), memory_bytes=0, address=f"10.0.0.{node}")
        for node in range(1, len(per_host) + 1)
    )
    return World(hosts=hosts, ranks=ranks, master_address="10.0.0.1", master_port=29_500)


def told(world: World, rank: int, prefix: str) -> dict[str, str]:
    variables = framework_variables(world.ranks[rank], world)
    return {name: value for name, value in variables.items() if name.startswith(prefix)}


def test_tensorflow_is_told_all_workers_in_the_order_of_ranks():
    assert json.loads(told(world_of([2, 1]), 2, "TF_")["TF_CONFIG"]) == {
        "cluster": {"worker": ["10.0.0.1:20000", "10.0.0.1:20001", "10.0.0.2:20002"]},
        "task": {"type": "worker", "index": 2},
    }


def test_an_address_of_ipv6_stands_in_brackets():
    world = world_of([2])
    world = replace(world, hosts=(replace(world.hosts[0], address="fd00::7"),))
    assert told(world, 1, "JAX_COO") == {"JAX_COORDINATOR_ADDRESS": "[fd00::7]:20000"}


def test_two_hosts_of_one_name_keep_their_addresses():
    world = world_of([1, 1])
    world = replace(world, ranks=tuple(replace(rank, host="node") for rank in world.ranks))
    workers = json.loads(told(world, 0, "TF_")["TF_CONFIG"])["cluster"]["worker"]
    assert workers == ["10.0.0.1:20000", "10.0.0.2:20001"]


def test_a_world_of_one_starts_no_cluster_of_tensorflow():
    assert told(world_of([1]), 0, "TF_") == {}


def test_a_cluster_too_large_for_a_variable_is_left_out():
    config = told(world_of([4000]), 0, "TF_")["TF_CONFIG"]
    assert 50_000 < len(config) < 100_000
    variables = framework_variables(world_of([6000]).ranks[0], world_of([6000]))
    assert "TF_CONFIG" not in variables
    assert {"JAX_PROCESS_ID", "HOROVOD_RANK"} < set(variables)


def test_without_ports_only_horovod_which_needs_none_is_told():
    variables = framework_variables(world_of([2], ports=[0, 0]).ranks[0], world_of([2], ports=[0, 0]))
    assert {name.partition("_")[0] for name in variables} == {"HOROVOD"}


def test_jax_is_told_where_rank_0_is_how_many_there_are_and_which_it_is():
    assert told(world_of([2, 1]), 2, "JAX") == {
        "JAX_COORDINATOR_ADDRESS": "10.0.0.1:20000",
        "JAX_NUM_PROCESSES": "3",
        "JAX_PROCESS_ID": "2",
    }


def test_jax_drives_the_gpu_of_its_rank_alone_where_ranks_share_those_of_a_host():
    world = world_of([2, 1])
    second = replace(world.ranks[1], gpu=1)
    assert framework_defaults(second, world)["JAX_LOCAL_DEVICE_IDS"] == "1"
    assert "JAX_LOCAL_DEVICE_IDS" not in framework_variables(second, world), "what a user set would be lost"


def test_jax_drives_all_gpus_that_its_rank_has_to_itself():
    world = world_of([2, 1])
    alone = replace(world.ranks[2], gpu=0)
    of_task = replace(world.ranks[1], gpu=0, gpu_on_host=2)
    assert "JAX_LOCAL_DEVICE_IDS" not in {**framework_defaults(alone, world), **framework_defaults(of_task, world)}


def test_horovod_counts_within_hosts_and_across_them():
    # of local number 1 there are two ranks, on the first and on the third host
    assert told(world_of([2, 1, 2]), 4, "HOROVOD") == {
        "HOROVOD_RANK": "4",
        "HOROVOD_SIZE": "5",
        "HOROVOD_LOCAL_RANK": "1",
        "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_CROSS_RANK": "1",
        "HOROVOD_CROSS_SIZE": "2",
        "HOROVOD_HOSTNAME": "n3",
    }


def test_tensorflow_gets_as_many_threads_as_the_rank_has():
    world = world_of([1])
    assert framework_defaults(world.ranks[0], world) == {"TF_NUM_INTRAOP_THREADS": "4", "TF_NUM_INTEROP_THREADS": "4"}


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_no_two_ranks_share_a_place(per_host):
    world = world_of(per_host)
    places = [framework_variables(rank, world) for rank in world.ranks]
    for one, other in (("HOROVOD_LOCAL_RANK", "HOROVOD_HOSTNAME"), ("HOROVOD_CROSS_RANK", "HOROVOD_LOCAL_RANK")):
        assert len({(place[one], place[other]) for place in places}) == world.size
    assert {place["JAX_COORDINATOR_ADDRESS"] for place in places} == {"10.0.0.1:20000"}
    if world.size > 1:
        configs = [json.loads(place["TF_CONFIG"]) for place in places]
        assert [config["task"]["index"] for config in configs] == list(range(world.size))
        assert len({json.dumps(config["cluster"]) for config in configs}) == 1


@contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Held as the launcher holds them: bound, not listening, and reusable."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for holder in sockets:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))
        yield [holder.getsockname()[1] for holder in sockets]


def run_ranks(script: str, misleading: dict[str, str]) -> list[str]:
    """What two ranks of a script print, with the variables of this file and nothing else that topout sets."""
    with reserved_ports(2) as ports:
        world = world_of([2], ports)
        world = replace(world, hosts=(replace(world.hosts[0], address="127.0.0.1"),))
        started = [
            subprocess.Popen(
                [sys.executable, "-P", "-m", "topout.record.rank", str(SCRIPTS / script)],
                env={
                    **os.environ,
                    **misleading,
                    **framework_variables(rank, world),
                    "TOPOUT_RECORD": '{"record": false}',
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in world.ranks
        ]
        ends = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0], ends
    return [out for out, _ in ends]


ONE_TASK_A_HOST = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "n1", "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
}  # fmt: skip
"""What Slurm tells where its one task started both ranks."""


def test_jax_initialises_without_arguments_also_where_slurm_tells_it_otherwise():
    outputs = run_ranks("jax_data_parallel.py", ONE_TASK_A_HOST)
    assert ["rank 0 of 2" in outputs[0], "rank 1 of 2" in outputs[1]] == [True, True], outputs
    losses = {line for out in outputs for line in out.splitlines() if line.startswith("LOSS")}
    assert len(losses) == 1, outputs
