"""What launchers tell each other arrives as it was sent."""

import json
from dataclasses import replace

import pytest

from topout.launch.first_failure import RankEnd
from topout.launch.member import Member
from topout.launch.plain_values import from_outline, from_plain, outline, to_plain
from topout.launch.rank_env import rank_environment
from topout.launch.schedulers import flux, lsf
from topout.schema.spec import RunSpec
from topout.schema.world import Core, Host, Nic, Rank, World

NIC = Nic(name="ib0", speed_bits_per_s=2e11, numa=1, addresses=("10.0.0.1", "fe80::1"), hca="mlx5_0:1")
CORES = tuple(Core(index=number, physical=number // 2, socket=0, numa=0) for number in range(4))
HOST = Host(name="n1", cores=CORES, memory_bytes=1 << 34, gpus=("A", "B"), gpu_numa=(0, None), nics=(NIC,))


def world_of(num_hosts: int, per_host: int = 2) -> World:
    """One NIC of two is near each rank."""
    hosts = [
        replace(HOST, name=f"n{number:04d}", address=f"10.0.0.{number}", interface=f"ib{number % 2}")
        for number in range(num_hosts)
    ]
    ranks = [
        Rank(
            rank=number * per_host + local,
            local_rank=local,
            node_rank=number,
            host=host.name,
            cores=(2 * local, 2 * local + 1),
            num_threads=2,
            gpu=local,
            nic=NIC if local else None,
            port=20_000 + number,
        )
        for number, host in enumerate(hosts)
        for local in range(per_host)
    ]
    return World(hosts=tuple(hosts), ranks=tuple(ranks), master_address="10.0.0.0", master_port=29500)


def sent(value):
    return from_plain(type(value), json.loads(json.dumps(to_plain(value))))


def test_a_launcher_and_a_rank_arrive_whole():
    assert sent(Member(number=3, host=HOST, granted=(1, 2))) == Member(number=3, host=HOST, granted=(1, 2))
    for rank in world_of(1).ranks:
        assert sent(rank) == rank


def test_the_cores_of_a_large_host_are_a_short_message_and_made_once_for_all_launchers():
    cores = tuple(Core(index=number, physical=number // 2, socket=number // 128, numa=0) for number in range(256))
    launchers = [Member(number=number, host=replace(HOST, cores=cores)) for number in range(2)]
    assert len(json.dumps(to_plain(cores))) < 20 * 256
    first, second = map(sent, launchers)
    assert first.host.cores == cores
    assert all(one is other for one, other in zip(first.host.cores, second.host.cores, strict=True))


@pytest.mark.parametrize("scheduler", [None, "slurm", "flux", "lsf"])
def test_the_outline_of_a_world_tells_ranks_all_that_they_must_know(scheduler, monkeypatch):
    for plugin in (flux, lsf):
        monkeypatch.setenv(plugin.TASK["rank"], "0")
    world = world_of(3)
    content = json.loads(json.dumps(outline(world)))
    spec = RunSpec(script="train.py", num_ranks=world.size)
    for node_rank, host in enumerate(world.hosts):
        own = [rank for rank in world.ranks if rank.node_rank == node_rank]
        heard = from_outline(content, host, own)
        assert [rank for rank in heard.ranks if rank.node_rank == node_rank] == own
        for rank in own:
            told, wanted = (
                rank_environment(rank, known, spec, 7, run="runs/1", inherited={}, scheduler=scheduler)
                for known in (heard, world)
            )
            assert told == wanted


def test_a_further_rank_is_a_few_bytes_in_what_all_launchers_are_told():
    small, large = (len(json.dumps(outline(world_of(num_hosts, per_host=8)))) for num_hosts in (100, 200))
    assert (large - small) / 800 < 24


def test_a_spec_arrives_whole():
    spec = RunSpec(script="train.py", args=("--lr", "1"), profile=(2, 3), filter=("a*",), origins={"args": "--"})
    assert sent(spec) == spec


def test_an_end_arrives_whole():
    end = RankEnd(rank=1, host="n2", pid=7, ended_at_ns=5, signal=9, signals_sent=frozenset({9, 15}), failure="x\ny")
    assert sent(end) == end
    assert sent(end).died_by_signal == end.died_by_signal


def test_a_field_that_only_another_version_has_is_passed_over():
    assert from_plain(Nic, {**to_plain(NIC), "kind": "efficient"}) == NIC
