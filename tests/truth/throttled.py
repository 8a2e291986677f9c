"""A network namespace whose loopback has a real rate limit: collectives inside it are slow because the wire is."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

RATE = "300mbit"


@contextmanager
def throttled_loopback(rate: str = RATE) -> Iterator[list[str]]:
    """Gives the words to put before a command, so that it runs where the loopback carries only `rate`."""
    # the whole machine shares these names
    name = f"topout-throttled-{os.getpid()}"

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    ip("netns", "add", name)
    try:
        ip("-n", name, "link", "set", "lo", "up")
        limit = ["tc", "-n", name, "qdisc", "add", "dev", "lo", "root", "tbf", "rate", rate]
        subprocess.run([*limit, "burst", "256kb", "latency", "200ms"], check=True, capture_output=True)
        yield ["ip", "netns", "exec", name]
    finally:
        ip("netns", "del", name)
