"""Ports that nobody else gets: held for rank 0 until it listens, or found free for every rank."""

import _socket

from topout.host.light_socket import Socket
from topout.host.open_files import allow_open_files
from topout.schema.errors import ExitCode, TopoutError


def hold_port(address: str) -> Socket:
    """Keep the socket open until the job has ended."""
    holder = reusable(address)
    holder.bind((address, 0))
    return holder


def free_ports(address: str, count: int) -> list[int]:
    """For frameworks in which every rank listens; nobody holds these, so use them soon."""
    # one is open for each until all are found
    allow_open_files(count)
    holders: list[Socket] = []
    try:
        while len(holders) < count:
            holders.append(hold_port(address))
        return [int(holder.getsockname()[1]) for holder in holders]
    except OSError as error:
        raise TopoutError(
            f"{count} ports for as many ranks cannot be had at {address}.",
            why=error.strerror or str(error),
            do="start fewer ranks with -n, or raise the limit on open files (ulimit -n)",
            exit_code=ExitCode.ENVIRONMENT,
        ) from error
    finally:
        for holder in holders:
            holder.close()


def reusable(address: str) -> Socket:
    """Several sockets may bind the same port, as long as none listens there yet."""
    family = _socket.AF_INET6 if ":" in address else _socket.AF_INET
    found = Socket(family, _socket.SOCK_STREAM)
    found.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    return found
