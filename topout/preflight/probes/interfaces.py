"""Which network interface an address belongs to, and how fast it says it is.

Not how fast it turns out to be; `sockets` measures that.
"""

from pathlib import Path

from topout.host.nics import link_speed_bits_per_s

_NETWORK = Path("/sys/class/net")


def interface_with(address: str | None) -> str | None:
    import psutil

    found = psutil.net_if_addrs().items()
    return next((name for name, entries in found for entry in entries if entry.address == address), None)


def speed_bits_per_s(interface: str | None, root: Path = _NETWORK) -> float | None:
    """None for virtual interfaces: a veth pair claims ten gigabits and carries whatever the machine can."""
    return None if interface is None else link_speed_bits_per_s(str(root / interface))
