"""Where ranks meet that srun, mpirun or their like started without `topout run`: what `topout.init()` asks.

The leading task holds a port at the job's own address and tells it to every task that proves the job's token, so no
variable has to be exported and no port agreed beforehand. Not under `topout run` or torchrun, which set MASTER_ADDR.
"""

from __future__ import annotations

import _socket
import os
import threading
import time

from topout.host.light_socket import Socket
from topout.host.open_files import allow_open_files
from topout.launch.allocation import Allocation, Task
from topout.launch.detect import check_world, detect_allocation
from topout.launch.leading import find_lead, head_addresses, own_address
from topout.launch.ports import reusable
from topout.launch.rendezvous import INTERFACE_VARIABLE, connect, job_ports, job_token, listen
from topout.launch.wire import NotOursError, Wire
from topout.schema.light_dataclass import dataclass

START_TIMEOUT_S = 60.0
_ACCEPT_AGAIN_S = 0.05


@dataclass(frozen=True, kw_only=True)
class RanksMeeting:
    """`listener` is open in the task that leads: its descriptor is where the ranks' store listens."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int | None
    address: str
    port: int
    listener: _socket.socket | None


def meet_as_task(timeout_s: float = START_TIMEOUT_S) -> RanksMeeting | None:
    """None where no launcher started several tasks; an error where tasks were asked for and this is none of them."""
    allocation = detect_allocation()
    if allocation is None or allocation.task is None or allocation.task.world_size == 1:
        check_world(allocation, 1)
        return None
    task = allocation.task
    token = job_token(allocation.job_id, os.environ)
    ports = job_ports(f"{allocation.job_id}/ranks")
    lead = find_lead(allocation, task)
    if lead.is_own:
        return _lead(allocation, task, own_address(lead, allocation, os.environ.get(INTERFACE_VARIABLE)), ports, token)
    addresses = head_addresses(lead, allocation, os.environ.get(INTERFACE_VARIABLE))
    to_wait = "topout.init(start_timeout_s=300)"
    wire = connect(addresses, ports, token, timeout_s=timeout_s, to_wait=to_wait)
    try:
        told = wire.next_message(time.monotonic() + timeout_s)
        wire.send("met")
        return _meeting(task, str(told["address"]), int(told["port"]), None)
    finally:
        wire.close()


def _lead(allocation: Allocation, task: Task, address: str, ports: list[int], token: str) -> RanksMeeting:
    door = listen(address, ports)
    door.setblocking(True)
    store = reusable(address)
    store.bind((address, 0))
    store.listen(1024)
    port = int(store.getsockname()[1])
    answering = threading.Thread(
        target=_tell, args=(door, token, address, port, task.world_size - 1), name="topout-meeting", daemon=True
    )
    answering.start()
    return _meeting(task, address, port, store)


def _tell(door: Socket, token: str, address: str, port: int, num_others: int) -> None:
    """Until every other task has read it; whoever says nothing holds up nobody."""
    told = threading.Semaphore(0)
    is_done = threading.Event()
    allow_open_files(num_others)

    def answer(connection: _socket.socket) -> None:
        wire = Wire(connection)
        try:
            wire.prove_as_head(token)
        except (OSError, NotOursError):
            wire.close()
            return
        wire.send("meet", address=address, port=port)
        # who has given up by now comes again, and is to be counted once; and a reset would take the message away
        has_read = False
        end_s = time.monotonic() + START_TIMEOUT_S
        while wire.is_open and not has_read and time.monotonic() < end_s:
            wire.wait(0.1)
            has_read = any(message.get("kind") == "met" for message in wire.receive())
        wire.close()
        if has_read:
            told.release()

    def accept() -> None:
        while not is_done.is_set():
            try:
                connection, _ = door.accept()
            except OSError:
                # out of descriptors, say; some are given back soon
                is_done.wait(_ACCEPT_AGAIN_S)
                continue
            try:
                threading.Thread(target=answer, args=(connection,), daemon=True).start()
            except RuntimeError:
                # out of threads; the other end tries again
                connection.close()
                is_done.wait(_ACCEPT_AGAIN_S)

    threading.Thread(target=accept, daemon=True).start()
    for _ in range(num_others):
        told.acquire()
    is_done.set()
    # accept() in another thread is woken by a shutdown, not by a close
    door.shutdown(_socket.SHUT_RDWR)
    door.close()


def _meeting(task: Task, address: str, port: int, listener: _socket.socket | None) -> RanksMeeting:
    return RanksMeeting(
        rank=task.rank,
        world_size=task.world_size,
        local_rank=task.local_rank,
        local_world_size=task.local_size,
        address=address,
        port=port,
        listener=listener,
    )
