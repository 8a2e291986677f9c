"""Ports that nobody else gets: held for rank 0 until it listens, or found free for every rank."""

import _socket

from topout.host.light_socket import Socket


def hold_port(address: str) -> Socket:
    """Keep the socket open until the job has ended."""
    holder = reusable(address)
    holder.bind((address, 0))
    return holder


def free_ports(address: str, count: int) -> list[int]:
    """For frameworks in which every rank listens; nobody holds these, so use them soon."""
    holders = [hold_port(address) for _ in range(count)]
    try:
        return [int(holder.getsockname()[1]) for holder in holders]
    finally:
        for holder in holders:
            holder.close()


def reusable(address: str) -> Socket:
    """Several sockets may bind the same port, as long as none listens there yet."""
    family = _socket.AF_INET6 if ":" in address else _socket.AF_INET
    found = Socket(family, _socket.SOCK_STREAM)
    found.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    return found
