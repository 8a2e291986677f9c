"""Ports that nobody else gets: held for rank 0 until it listens, or found free for every rank."""

import socket


def hold_port(address: str) -> socket.socket:
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


def reusable(address: str) -> socket.socket:
    """Several sockets may bind the same port, as long as none listens there yet."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return found
