"""`topout.init()`: one rank of many, whoever started it.

    ctx = topout.init()

Works with no launcher (a world of one), under `topout run`, torchrun, srun, mpirun and their like. A job of several
tasks whose processes would each train alone is an error, not a warning.
"""

import os
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist

from topout.host.nics import choose_interface, read_nics
from topout.launch.ranks_meeting import START_TIMEOUT_S, RanksMeeting, meet_as_task
from topout.record import kept_memory
from topout.record.recorder import current
from topout.schema.errors import ExitCode, TopoutError
from topout.train.context import Context
from topout.train.joining import join
from topout.train.leaving import leave_at_exit
from topout.train.place import Place, alone, joined

__all__ = ["Context", "init"]

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_context: Context | None = None


def init(
    *,
    seed: int = 0,
    backend: str | None = None,
    timeout_s: float = 600.0,
    start_timeout_s: float = START_TIMEOUT_S,
    keep_memory: bool = True,
) -> Context:
    """Joins the other ranks, once a process; later calls give the same context.

    `seed` decides the order of samples. `backend` is torch's; left out, NCCL carries tensors of GPUs that no two
    ranks share, and Gloo the others. `timeout_s` is that of collectives, `start_timeout_s` how long a task of srun or
    mpirun waits for the first one to get here. On CPUs memory that a step has freed stays with the process for the
    next one, unless `keep_memory` is False or the environment says what glibc gives back.
    """
    global _context
    if _context is None:
        _context = _join(seed, backend, timedelta(seconds=timeout_s), start_timeout_s)
        if keep_memory and _context.device.type == "cpu":
            _keep_memory()
    return _context


def _keep_memory() -> None:
    recorder = current()
    if kept_memory.keep() is None and recorder is not None:
        recorder.fact(keeps_memory=True)


def _join(seed: int, backend: str | None, timeout: timedelta, start_timeout_s: float) -> Context:
    if dist.is_available() and dist.is_initialized():
        return Context(_place_in_group(os.environ), seed=seed)
    variables = _given(os.environ)
    if variables is not None:
        if int(variables["WORLD_SIZE"]) == 1:
            return Context(_place_alone(), seed=seed)
        device = _device(_local_rank(os.environ))
        join(device, backend=backend, timeout=timeout)
        leave_at_exit()
        return Context(_place_in_group(os.environ), seed=seed, owns_group=True)
    meeting = meet_as_task(start_timeout_s)
    if meeting is None:
        return Context(_place_alone(), seed=seed)
    return Context(_meet(meeting, backend, timeout), seed=seed, owns_group=True)


def _given(environ: Mapping[str, str]) -> Mapping[str, str] | None:
    """What `topout run` and torchrun set; None when nobody did."""
    found = {name: environ[name] for name in _NEEDED if name in environ}
    if "WORLD_SIZE" not in found and "RANK" not in found:
        return None
    if found.get("WORLD_SIZE") == "1":
        return found
    missing = [name for name in _NEEDED if name not in found]
    wrong = [name for name in ("RANK", "WORLD_SIZE") if not found.get(name, "0").isdecimal()]
    if missing or wrong:
        raise TopoutError(
            f"{', '.join(missing or wrong)} {'is' if len(missing or wrong) == 1 else 'are'} "
            f"{'not set' if missing else 'no number'}, and others of torch's variables are.",
            why=f"Ranks meet by {', '.join(_NEEDED)}; found {', '.join(f'{n}={v}' for n, v in found.items())}.",
            do="topout run -n N script.py sets all of them; or unset those that are left over",
            exit_code=ExitCode.ENVIRONMENT,
        )
    return found


def _meet(meeting: RanksMeeting, backend: str | None, timeout: timedelta) -> Place:
    """Tasks of srun or mpirun: a store at the job's own address, and the variables that other libraries look for."""
    local_world_size = meeting.local_world_size or 1
    os.environ.update(
        RANK=str(meeting.rank),
        WORLD_SIZE=str(meeting.world_size),
        LOCAL_RANK=str(meeting.local_rank),
        LOCAL_WORLD_SIZE=str(local_world_size),
        MASTER_ADDR=meeting.address,
        MASTER_PORT=str(meeting.port),
    )
    _choose_interface(meeting.address)
    listening = {} if meeting.listener is None else {"master_listen_fd": meeting.listener.detach()}
    store = dist.TCPStore(
        meeting.address,
        meeting.port,
        meeting.world_size,
        is_master=bool(listening),
        timeout=timeout,
        wait_for_workers=False,
        **listening,
    )
    device = _device(meeting.local_rank)
    join(device, backend=backend, store=store, rank=meeting.rank, world_size=meeting.world_size, timeout=timeout)
    leave_at_exit()
    return joined(device, local_rank=meeting.local_rank, local_world_size=local_world_size)


def _choose_interface(address: str) -> None:
    """The one that leads to the others: a host's own name often resolves to an address that nobody else reaches."""
    if address.startswith("127."):
        return
    _, name = choose_interface(read_nics(), [address], os.environ.get("TOPOUT_INTERFACE"))
    if name:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def _place_in_group(environ: Mapping[str, str]) -> Place:
    local_rank = _local_rank(environ)
    local_world_size = environ.get("LOCAL_WORLD_SIZE", "1")
    return joined(
        # whoever has joined without this variable, as processes of mp.spawn do, has chosen its GPU by itself
        _device(local_rank) if "LOCAL_RANK" in environ else _present_device(),
        local_rank=local_rank,
        local_world_size=int(local_world_size) if local_world_size.isdecimal() else 1,
    )


def _place_alone() -> Place:
    return alone(str(_device(_local_rank(os.environ))))


def _local_rank(environ: Mapping[str, str]) -> int:
    text = environ.get("LOCAL_RANK", "0")
    return int(text) if text.isdecimal() else 0


def _present_device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _device(local_rank: int) -> torch.device:
    """This rank's GPU: the only one it can see, or the one of its number."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device
