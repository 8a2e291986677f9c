"""Which network interface an address belongs to, and how fast it says it is.

Not how fast it turns out to be; `sockets` measures that.
"""

from pathlib import Path

_NETWORK = Path("/sys/class/net")


def interface_with(address: str | None) -> str | None:
    import psutil

    found = psutil.net_if_addrs().items()
    return next((name for name, entries in found for entry in entries if entry.address == address), None)


def speed_bits_per_s(interface: str | None, root: Path = _NETWORK) -> float | None:
    """None for virtual interfaces: a veth pair claims ten gigabits and carries whatever the machine can."""
    if interface is None or not (root / interface / "device").exists():
        return None
    try:
        megabits = int((root / interface / "speed").read_text())
    except (OSError, ValueError):
        return None
    return megabits * 1e6 if megabits > 0 else None
