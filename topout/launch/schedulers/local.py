"""This machine, without a scheduler.

Not inside an allocation of several hosts: their scheduler knows which, this file sees only the one it runs on.
"""

import os
import socket
from collections.abc import Mapping, Sequence

from topout.host.topology import read_host
from topout.launch.allocation import Allocation
from topout.schema.world import Host, Rank, World

TITLE = "this machine"
MASTER_ADDRESS = "127.0.0.1"


def detect(environ: Mapping[str, str]) -> Allocation | None:
    """Nobody granted anything."""
    return None


def start_commands(
    allocation: Allocation, command: Sequence[str], *, num_hosts: int, variables: Mapping[str, str] | None = None
) -> list[list[str]]:
    return [list(command)]


def start_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return dict(environ)


def rank_variables(rank: Rank, world: World) -> dict[str, str]:
    return {}


def is_here(environ: Mapping[str, str] = os.environ) -> bool:
    """This machine is always there; asked last."""
    return True


def hosts(environ: Mapping[str, str] = os.environ) -> tuple[Host, ...]:
    return (read_host(environ),)


def reserve_port() -> socket.socket:
    """A port that nobody else gets before rank 0 listens on it; keep the socket open until the job has ended.

    Bound but not listening, and reusable: rank 0 may bind it as well, while the kernel gives it to no one else.
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((MASTER_ADDRESS, 0))
    return holder
