"""Joins torch's default group over what carries this job's tensors: NCCL where every rank has a GPU of its own.

NCCL refuses two ranks on one GPU. Gloo carries their tensors too, through host memory; a laptop or a workstation with
one GPU can then run what a cluster will. Not for scripts that choose a backend themselves.
"""

import os
import socket
import sys
from collections import Counter
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from topout.record import gloo_threads

BOTH = "cpu:gloo,cuda:nccl"
_MEETING_TIMEOUT = timedelta(minutes=30)
_MOST_WAITING = 1024
"""Connections that the kernel keeps until the store has taken them."""
_PLACE = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
_met: dict[tuple[str, ...], tuple[Any, int, int]] = {}
"""By what the environment says. A rank may leave and join again: one that comes later must find the same store."""
_num_joined: Counter[tuple[str, ...]] = Counter()


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
        place = (str(rank), str(world_size), *(os.environ.get(name, "") for name in _PLACE))
        if place not in _met:
            _met[place] = _meet(rank, world_size, timeout or _MEETING_TIMEOUT)
        store, rank, world_size = _met[place]
        store.set_timeout(timeout or _MEETING_TIMEOUT)
        _num_joined[place] += 1
        # addresses of an earlier group would be taken for those of this one
        store = dist.PrefixStore(str(_num_joined[place]), store)
    store = dist.PrefixStore("topout", store)
    chosen = backend or choose_backend(_identity(device), store, rank, world_size)
    gloo_threads.install(dist.distributed_c10d)
    bound = {"device_id": device} if device.type == "cuda" and "nccl" in chosen else {}
    dist.init_process_group(chosen, store=store, rank=rank, world_size=world_size, timeout=timeout, **bound)


def open_store(address: str, port: int, world_size: int, timeout: timedelta) -> Any:
    """Rank 0's store, heard at that address alone, where torch listens at all of the host's; None: torch may try it.

    Whoever reaches a store can read and change what ranks tell each other in it.
    """
    try:
        listener = _listener(address, port)
    except (OSError, OverflowError):
        # not this host's own, as behind a proxy; or taken, and then torch shares an earlier store of this process
        return None
    return dist.TCPStore(
        address,
        port,
        world_size,
        is_master=True,
        timeout=timeout,
        multi_tenant=True,
        master_listen_fd=listener.detach(),
        use_libuv=os.environ.get("USE_LIBUV", "1") == "1",
    )


def _listener(address: str, port: int) -> socket.socket:
    """Raises OSError for a name other than localhost: other hosts may know it as another address than this one does."""
    flags = 0 if address == "localhost" else socket.AI_NUMERICHOST
    found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM, flags=flags)
    family, _, _, _, place = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return socket.create_server((place[0], port, *place[2:]), family=family, backlog=_MOST_WAITING)


def _meet(rank: int, world_size: int, timeout: timedelta) -> tuple[Any, int, int]:
    """As torch meets by `env://`. Where torchrun holds the store, no rank does."""
    given = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")]
    is_ours = rank == world_size == -1 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if is_ours and given[0] == "0" and all(text.isdecimal() for text in given):
        store = open_store(os.environ.get("MASTER_ADDR", ""), int(given[2]), int(given[1]), timeout)
        if store is not None:
            return store, 0, int(given[1])
    found: tuple[Any, int, int] = next(dist.rendezvous("env://", rank, world_size, timeout=timeout))
    return found


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
