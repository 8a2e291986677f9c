"""A port that nobody has and that the kernel gives to nobody until it is used: other tests run beside this one."""

import random
import socket
from pathlib import Path

_LOWEST = 12_000


def free_port() -> int:
    lowest_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        # not by the tests' own seeds, which are the same in every process
        port = random.SystemRandom().randrange(_LOWEST, max(lowest_given, _LOWEST + 1000))
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
