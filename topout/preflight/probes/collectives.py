"""All-reduce through torch.distributed: within this host between two processes (or its GPUs), and between all hosts.

What a training will use, library included; the plain network is in `sockets`. Call `within_host` before the GPU is used
here: its processes are forked.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from statistics import median
from typing import Any

from topout.preflight.facts import Link, LinkSample
from topout.preflight.probes.forked import forked
from topout.preflight.probes.interfaces import interface_with
from topout.preflight.probes.meeting import Meeting, server_at
from topout.record import gloo_threads

SIZES_BYTES = (4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20)
GPU_SIZES_BYTES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20)
_MOST_REPEATS = 20
_FEWEST_REPEATS = 4
_BUDGET_S = 0.3
_LIMIT = timedelta(seconds=15)
_LOOPBACK = "127.0.0.1"


def within_host(host: str, num_gpus: int) -> tuple[Link, ...]:
    """Gloo between two processes; NCCL between the host's GPUs where it has several."""
    found = [_among_forks("gloo", 2, host)]
    if num_gpus > 1:
        found.append(_among_forks("nccl", num_gpus, host))
    return tuple(found)


def between_hosts(meeting: Meeting, names: Sequence[str], num_gpus: int) -> tuple[Link, ...]:
    """One process a host; the first host keeps the figures."""
    present = meeting.exchange("collectives", {"address": meeting.address, "gpus": num_gpus})
    if meeting.size == 1 or any(other is None for other in present):
        return ()
    backends = ["gloo", *(["nccl"] if all(other["gpus"] for other in present) else [])]
    found = []
    for backend in backends:
        port = _free_port(str(present[0]["address"])) if meeting.is_first else 0
        ports = meeting.exchange(f"port for {backend}", port)
        if ports[0]:
            place = (str(present[0]["address"]), int(ports[0]))
            with _interface_of(str(meeting.address)):
                samples = _all_reduce(backend, meeting.number, meeting.size, place)
            found.append(_link("between hosts", backend, tuple(names), meeting.size, samples))
    return tuple(found) if meeting.is_first else ()


def _among_forks(backend: str, num_ranks: int, host: str) -> Link:
    place = (_LOOPBACK, _free_port(_LOOPBACK))
    is_gpu = backend == "nccl"
    with _interface_of(_LOOPBACK), ExitStack() as children:
        # a GPU that this process wakes up could not be used by forks any more: then forks do all the work
        first = 0 if is_gpu else 1
        reader, writer = os.pipe()
        for rank in range(first, num_ranks):
            children.enter_context(forked(partial(_report, writer, backend, rank, num_ranks, place)))
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            samples = _decoded(pipe.read()) if is_gpu else _all_reduce(backend, 0, num_ranks, place)
    return _link("within a host", backend, (host,), num_ranks, samples)


def _report(fd: int, backend: str, rank: int, num_ranks: int, place: tuple[str, int]) -> None:
    import msgspec

    samples = _all_reduce(backend, rank, num_ranks, place)
    if rank == 0:
        os.write(fd, msgspec.json.encode(samples))


def _decoded(data: bytes) -> tuple[LinkSample, ...]:
    import msgspec

    if not data:
        raise ConnectionError("the processes within the host did not come to an end")
    return msgspec.json.decode(data, type=tuple[LinkSample, ...])


def _all_reduce(backend: str, rank: int, num_ranks: int, place: tuple[str, int]) -> tuple[LinkSample, ...]:
    import torch
    import torch.distributed as dist

    is_gpu = backend == "nccl"
    if is_gpu:
        torch.cuda.set_device(rank % torch.cuda.device_count())
    # torch itself would listen at all addresses of the host
    listening = {"master_listen_fd": server_at(place).detach()} if rank == 0 else {}
    store = dist.TCPStore(*place, num_ranks, is_master=rank == 0, timeout=_LIMIT, **listening)
    # as in the ranks of a job
    gloo_threads.install(dist.distributed_c10d)
    dist.init_process_group(backend, store=store, rank=rank, world_size=num_ranks, timeout=_LIMIT)
    try:
        return tuple(
            _one_size(torch, dist, num_bytes, is_gpu) for num_bytes in (GPU_SIZES_BYTES if is_gpu else SIZES_BYTES)
        )
    finally:
        dist.destroy_process_group()


def _one_size(torch: Any, dist: Any, num_bytes: int, is_gpu: bool) -> LinkSample:
    tensor = torch.zeros(num_bytes // 4, device="cuda" if is_gpu else "cpu")
    # the first one sets up buffers; it also tells, the same to all ranks, how many repeats the budget allows
    first_s = _timed(torch, dist, tensor, is_gpu)
    longest = torch.tensor([first_s], device=tensor.device, dtype=torch.float32)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    repeats = min(max(int(_BUDGET_S / max(float(longest), 1e-6)), _FEWEST_REPEATS), _MOST_REPEATS)
    times_s, cpu_s = [], []
    for _ in range(repeats):
        start_cpu_s = time.process_time()
        times_s.append(_timed(torch, dist, tensor, is_gpu))
        cpu_s.append(round(time.process_time() - start_cpu_s, 9))
    # the middle one: now and then a thread turns round until the next tick of the scheduler. A host that waits for its
    # GPU always does: that is not what a message costs
    return LinkSample(num_bytes=num_bytes, times_s=tuple(times_s), cpu_s=None if is_gpu else median(cpu_s))


def _timed(torch: Any, dist: Any, tensor: Any, is_gpu: bool) -> float:
    start_s = time.perf_counter()
    dist.all_reduce(tensor)
    if is_gpu:
        torch.cuda.synchronize()
    return round(time.perf_counter() - start_s, 9)


@contextmanager
def _interface_of(address: str) -> Iterator[None]:
    """Gloo would take what this host's name resolves to, often the loopback; a choice made by others stands."""
    kept = os.environ.get("GLOO_SOCKET_IFNAME")
    name = interface_with(address)
    if name and (kept is None or address == _LOOPBACK):
        os.environ["GLOO_SOCKET_IFNAME"] = name
    try:
        yield
    finally:
        os.environ.pop("GLOO_SOCKET_IFNAME", None)
        if kept is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = kept


def _free_port(address: str) -> int:
    with server_at((address, 0)) as server:
        return int(server.getsockname()[1])


def _link(
    link_class: str, backend: str, hosts: tuple[str, ...], num_ranks: int, samples: tuple[LinkSample, ...]
) -> Link:
    return Link(
        link_class=link_class,
        operation="all-reduce",
        transport=backend,
        hosts=hosts,
        num_ranks=num_ranks,
        samples=samples,
    )
