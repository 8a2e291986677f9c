"""Joins torch's default group over what carries this job's tensors: NCCL where every rank has a GPU of its own.

NCCL refuses two ranks on one GPU. Gloo carries their tensors too, through host memory; a laptop or a workstation with
one GPU can then run what a cluster will. Not for scripts that choose a backend themselves.
"""

import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from topout.record import gloo_threads

BOTH = "cpu:gloo,cuda:nccl"
_MEETING_TIMEOUT = timedelta(minutes=30)


def join(
    device: torch.device,
    *,
    backend: str | None = None,
    store: Any = None,
    rank: int = -1,
    world_size: int = -1,
    timeout: timedelta | None = None,
) -> None:
    """Without a store, ranks meet by torch's environment variables."""
    if store is None:
        store, rank, world_size = next(dist.rendezvous("env://", rank, world_size, timeout=timeout or _MEETING_TIMEOUT))
        store.set_timeout(timeout or _MEETING_TIMEOUT)
    store = dist.PrefixStore("topout", store)
    chosen = backend or choose_backend(_identity(device), store, rank, world_size)
    gloo_threads.install(dist.distributed_c10d)
    bound = {"device_id": device} if device.type == "cuda" and "nccl" in chosen else {}
    dist.init_process_group(chosen, store=store, rank=rank, world_size=world_size, timeout=timeout, **bound)


def choose_backend(gpu: str | None, store: Any, rank: int, world_size: int) -> str:
    """The same on all ranks: rank 0 compares what each says it computes on (None: a CPU), the others wait for it."""
    store.set(f"gpu/{rank}", gpu or "")
    if rank == 0:
        names = [name.decode() for name in store.multi_get([f"gpu/{other}" for other in range(world_size)])]
        gpus = [name for name in names if name]
        store.set("backend", BOTH if gpus and len(set(gpus)) == len(gpus) else "gloo")
        if len(set(gpus)) < len(gpus):
            sys.stderr.write("topout: ranks share a GPU, which NCCL does not allow; Gloo carries their tensors\n")
    return str(store.get("backend").decode())


def _identity(device: torch.device) -> str | None:
    if device.type != "cuda" or not dist.is_nccl_available():
        return None
    return str(torch.cuda.get_device_properties(device).uuid)
