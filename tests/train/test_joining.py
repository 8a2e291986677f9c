"""What carries tensors is one decision for all ranks, taken from what each computes on."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from topout.api import train
from topout.train.joining import BOTH, choose_backend


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
