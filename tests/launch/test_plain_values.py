"""What launchers tell each other arrives as it was sent."""

import json
from dataclasses import replace

from topout.launch.first_failure import RankEnd
from topout.launch.member import Member
from topout.launch.plain_values import from_plain, to_plain
from topout.schema.spec import RunSpec
from topout.schema.world import Core, Host, Nic, Rank, World

NIC = Nic(name="ib0", speed_bits_per_s=2e11, numa=1, addresses=("10.0.0.1", "fe80::1"), hca="mlx5_0:1")
CORES = tuple(Core(index=number, physical=number // 2, socket=0, numa=0) for number in range(4))
HOST = Host(name="n1", cores=CORES, memory_bytes=1 << 34, gpus=("A", "B"), gpu_numa=(0, None), nics=(NIC,))
RANKS = tuple(
    Rank(rank=number, local_rank=number, node_rank=0, host="n1", cores=(0, 1), num_threads=2, nic=nic)
    for number, nic in enumerate((NIC, None))
)
WORLD = World(hosts=(HOST, replace(HOST, name="n2")), ranks=RANKS, master_address="10.0.0.1", master_port=29500)


def sent(value):
    return from_plain(type(value), json.loads(json.dumps(to_plain(value))))


def test_a_world_arrives_whole():
    assert sent(WORLD) == WORLD
    assert isinstance(sent(WORLD).hosts[0].nics[0], Nic)
    assert sent(Member(number=3, host=HOST, granted=(1, 2))) == Member(number=3, host=HOST, granted=(1, 2))


def test_a_spec_arrives_whole():
    spec = RunSpec(script="train.py", args=("--lr", "1"), profile=(2, 3), filter=("a*",), origins={"args": "--"})
    assert sent(spec) == spec


def test_an_end_arrives_whole():
    end = RankEnd(rank=1, host="n2", pid=7, ended_at_ns=5, signal=9, signals_sent=frozenset({9, 15}), failure="x\ny")
    assert sent(end) == end
    assert sent(end).died_by_signal == end.died_by_signal


def test_a_field_that_only_another_version_has_is_passed_over():
    assert from_plain(Core, {**to_plain(CORES[0]), "kind": "efficient"}) == CORES[0]
