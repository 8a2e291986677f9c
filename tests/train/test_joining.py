"""What carries tensors is one decision for all ranks, taken from what each computes on."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

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
