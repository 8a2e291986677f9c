"""This machine, without a scheduler.

Not inside an allocation of several hosts: their scheduler knows which, this file sees only the one it runs on.
"""

import os
import socket
from collections.abc import Mapping

from topout.launch.topology import read_host
from topout.schema.world import Host

MASTER_ADDRESS = "127.0.0.1"


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
