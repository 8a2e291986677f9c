"""Ranks meet in a store that is heard at the job's address alone; what carries tensors is one decision for all."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.ports import free_port
from tests.train.conftest import rank_variables
from topout.api import train
from topout.train import joining
from topout.train.joining import BOTH, choose_backend, open_store

SOME_TIME = timedelta(seconds=20)
MEET = """
import json, os, socket
from datetime import timedelta
import topout
from topout.train import joining

ctx = topout.init()
port = int(os.environ["MASTER_PORT"])
with socket.socket() as stranger:
    is_heard = stranger.connect_ex(("127.0.0.2", port)) == 0
# a second meeting in the same place, as of a script that makes a group of its own
again, rank, world_size = joining._meet(-1, -1, timedelta(seconds=20))
again.set(f"said by {rank}", str(rank))
print(json.dumps([is_heard, world_size, again.get(f"said by {1 - rank}").decode()]))
ctx.close()
"""

REJOIN = """
import torch
import torch.distributed as dist
from topout.train.joining import join

sums = []
for _ in range(5):
    join(torch.device("cpu"))
    mine = torch.ones(1)
    dist.all_reduce(mine, group=dist.new_group())
    sums.append(mine.item())
    dist.destroy_process_group()
print(sums)
"""


def choices(gpus):
    store = dist.HashStore()
    with ThreadPoolExecutor(len(gpus)) as threads:
        asked = [threads.submit(choose_backend, gpu, store, rank, len(gpus)) for rank, gpu in enumerate(gpus)]
    return [choice.result() for choice in asked]


@pytest.mark.parametrize(
    ("gpus", "backend"),
    [
        (["GPU-a", "GPU-b", "GPU-c"], BOTH),
        (["GPU-a", "GPU-b", "GPU-a"], "gloo"),
        ([None, None], "gloo"),
        ([None, "GPU-a"], BOTH),
    ],
)
def test_nccl_is_chosen_where_no_two_ranks_share_a_gpu(gpus, backend):
    assert choices(gpus) == [backend] * len(gpus)


def test_ranks_that_share_a_gpu_are_told_once(capsys):
    choices(["GPU-a", "GPU-a"])
    assert capsys.readouterr().err.count("share a GPU") == 1


@pytest.mark.parametrize(("environ", "gpu", "is_set"), [({}, 2, []), ({"LOCAL_RANK": "3"}, 3, [3])])
def test_a_gpu_that_the_script_chose_before_it_joined_is_kept(monkeypatch, environ, gpu, is_set):
    """As in processes of mp.spawn, which have no LOCAL_RANK."""
    chosen = []
    for name, value in {"is_available": True, "current_device": 2, "device_count": 4}.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: chosen.append(device.index))
    monkeypatch.setattr(train, "joined", lambda device, **_: device)
    assert train._place_in_group(environ) == torch.device("cuda", gpu)
    assert chosen == is_set


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
def test_ranks_meet_in_a_store_that_no_other_address_of_the_host_answers_for(run_ranks, address):
    ranks = run_ranks(MEET, 2, env={"MASTER_ADDR": address})
    assert [ended.said for ended in ranks] == [[False, 2, "1"], [False, 2, "0"]], ranks[0].stderr + ranks[1].stderr


def test_ranks_that_left_can_join_again_though_not_all_at_one_moment(run_ranks):
    ranks = run_ranks(REJOIN, 2, timeout=60)
    assert [ended.said for ended in ranks] == [[2.0] * 5] * 2, ranks[0].stderr + ranks[1].stderr


@pytest.mark.parametrize("address", ["n1.cluster", "192.0.2.1"])
def test_a_name_that_others_may_know_otherwise_and_an_address_of_another_are_left_to_torch(address):
    assert open_store(address, free_port(), 1, SOME_TIME) is None


@pytest.mark.parametrize("libuv", ["0", "1"])
def test_rank_0s_store_is_of_the_kind_that_the_environment_asks_for(monkeypatch, libuv):
    for name, value in {**rank_variables(1, free_port())[0], "USE_LIBUV": libuv}.items():
        monkeypatch.setenv(name, value)
    store, rank, world_size = joining._meet(-1, -1, SOME_TIME)
    assert (rank, world_size, store.libuvBackend) == (0, 1, libuv == "1")


def test_where_torchrun_holds_the_store_no_rank_listens(monkeypatch):
    of_torchrun = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    variables = {**rank_variables(1, of_torchrun.port)[0], "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(joining, "open_store", lambda *_: pytest.fail("rank 0 listened"))
    store, _, _ = joining._meet(-1, -1, SOME_TIME)
    store.set("said", "by rank 0")
    assert of_torchrun.get("said") == b"by rank 0"
