"""Several interfaces of this host in the network of a job, each of which sends what has its address by itself.

Two interfaces in one network are not yet two ways. Without rules by source address Linux sends everything over the
first, answers for the address of one at the other, and may drop what comes in where it would not have sent it out
(rp_filter). So the kernel is asked for the way out of each address, as `ip route get` does, and what it does not send
apart is left as one. Not for InfiniBand ports, which NCCL and UCX tell apart by themselves, nor for IPv6.
"""

import socket
import struct
from collections.abc import Sequence

from topout.host.kernel_files import read_text
from topout.host.nics import networks_with, own_address_in
from topout.schema.world import Nic

_GET_ROUTE, _NEW_ROUTE, _IS_REQUEST = 26, 24, 1
_TO, _FROM, _OUT, _GATEWAY = 1, 2, 4, 5
"""Attributes of rtnetlink."""
_UNICAST = 1
_NEAREST = 8
"""Addresses beside our own that are tried out as somebody else's."""


def find_rails(nics: Sequence[Nic], peer: str, name: str) -> tuple[str, ...]:
    """Names of those as fast as `name`, which leads to the peer, and in its network; empty unless there are several."""
    chosen = next((nic for nic in nics if nic.name == name), None)
    if chosen is None or not chosen.speed_bits_per_s or any(nic.hca for nic in nics) or ":" in peer:
        return ()
    networks = networks_with(read_text("/proc/net/route"), peer)
    found = []
    for nic in nics:
        is_alike = nic.speed_bits_per_s == chosen.speed_bits_per_s and networks.get(nic.name) == networks.get(name)
        address = own_address_in(nic, networks.get(nic.name))
        if is_alike and address is not None:
            found.append((nic.name, address))
    if len(found) < 2:
        return ()
    taken = {address for _, address in found}
    beside = [_neighbour(peer, distance) for distance in range(1, _NEAREST)] if peer in taken else [peer]
    apart = [
        name_of
        for name_of, address in found
        # the host of rank 0 knows no other host's address yet
        if any(way_out(other, address) == socket.if_nametoindex(name_of) for other in beside if other not in taken)
    ]
    return tuple(apart) if name in apart and len(apart) > 1 else ()


def way_out(target: str, source: str) -> int | None:
    """The number of the interface over which the kernel sends from one address to another in its network."""
    ends = ((_TO, target), (_FROM, source))
    attributes = b"".join(struct.pack("=HH4s", 8, kind, socket.inet_aton(address)) for kind, address in ends)
    route = struct.pack("=BBBBBBBBI", socket.AF_INET, 32, 32, 0, 0, 0, 0, 0, 0)
    size = 16 + len(route) + len(attributes)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(1.0)
        try:
            kernel.send(struct.pack("=IHHII", size, _GET_ROUTE, _IS_REQUEST, 1, 0) + route + attributes)
            answer = kernel.recv(1 << 12)
        except OSError:
            return None
    if struct.unpack_from("=H", answer, 4)[0] != _NEW_ROUTE or answer[16 + 7] != _UNICAST:
        return None
    said: dict[int, bytes] = {}
    place = 16 + len(route)
    while place + 4 <= len(answer):
        length, kind = struct.unpack_from("=HH", answer, place)
        said[kind] = answer[place + 4 : place + length]
        place += max((length + 3) & ~3, 4)
    if _GATEWAY in said or _OUT not in said:
        return None
    return int(struct.unpack("=I", said[_OUT])[0])


def _neighbour(address: str, distance: int) -> str:
    number = int.from_bytes(socket.inet_aton(address), "big") ^ distance
    return socket.inet_ntoa(number.to_bytes(4, "big"))
