"""The network interfaces of this host, which of them leads to the other hosts, and which is nearest to a rank.

Interfaces are asked of the kernel, not listed from /sys: in a network namespace whose /sys was mounted outside, those
would be another host's. Not a measurement: `topout doctor` measures what a link carries.
"""

# paths are texts here: `pathlib` takes longer to load than all of this to read
# ruff: noqa: PTH112, PTH120

from __future__ import annotations

import _socket
import fcntl
import os
import struct
import sys

from topout.host.kernel_files import names_in, read_int, read_text
from topout.host.light_socket import Socket
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.light_array import array
from topout.schema.light_dataclass import dataclass, replace
from topout.schema.world import Host, Nic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_SYS = "/sys"
_DIGITS = "0123456789"
_IS_UP, _IS_LOOPBACK = 0x1, 0x8
_SIOCGIFCONF, _SIOCGIFFLAGS, _SIOCGIFHWADDR = 0x8912, 0x8913, 0x8927
_IFREQ_BYTES = 40
"""struct ifreq on 64-bit Linux: sixteen bytes of name, then an address."""
_MOST_ADDRESSES = 512
_COMPARABLE_SHARE = 0.5
"""A port slower than this share of the fastest is there for management, not for training."""


@dataclass(frozen=True, kw_only=True)
class _Interface:
    """What the kernel says of one interface in this process's network namespace."""

    flags: int
    addresses: tuple[str, ...] = ()
    is_in_sys: bool = True
    """/sys tells of this interface, not of one with the same name in another namespace."""


def read_nics(sys_root: str | Path = _SYS) -> tuple[Nic, ...]:
    """Those that are up, the fastest first; without the loopback and without bridges to virtual machines alone."""
    is_here = sys_root == _SYS
    interfaces = _ask_kernel() if is_here else _recorded(sys_root)
    found: dict[str, Nic] = {}
    for name, interface in interfaces.items():
        net = f"{sys_root}/class/net/{name}"
        if not interface.flags & _IS_UP or interface.flags & _IS_LOOPBACK:
            continue
        if not interface.is_in_sys:
            found[name] = Nic(name=name, addresses=interface.addresses)
        elif read_text(f"{net}/carrier").strip() != "0" and not _is_inner_bridge(net):
            found[name] = Nic(
                name=name,
                speed_bits_per_s=link_speed_bits_per_s(net),
                numa=_numa(net),
                addresses=interface.addresses,
            )
    if not is_here or os.path.isdir("/dev/infiniband"):
        from pathlib import Path

        for nic in _infiniband_ports(Path(sys_root), found, needs_address=is_here):
            found[nic.name] = nic
    # without an address an interface is the far end of something, such as a port of a bridge
    usable = [nic for nic in found.values() if nic.addresses or nic.hca or not is_here]
    return tuple(sorted(usable, key=lambda nic: (-(nic.speed_bits_per_s or 0.0), _by_number(nic.name))))


def _recorded(sys_root: str | Path) -> dict[str, _Interface]:
    names = names_in(f"{sys_root}/class/net")
    flags = {name: read_text(f"{sys_root}/class/net/{name}/flags").strip() for name in names}
    return {name: _Interface(flags=int(text, 16)) for name, text in flags.items() if text}


def _ask_kernel() -> dict[str, _Interface]:
    found = {}
    addresses = own_addresses()
    with Socket(_socket.AF_INET, _socket.SOCK_DGRAM) as asking:
        for _, name in _socket.if_nameindex():
            request = struct.pack("16s24x", name.encode())
            try:
                flags = struct.unpack_from("H", fcntl.ioctl(asking, _SIOCGIFFLAGS, request), 16)[0]
                hardware = fcntl.ioctl(asking, _SIOCGIFHWADDR, request)[18:24]
            except OSError:
                continue  # gone in the meantime
            said = read_text(f"{_SYS}/class/net/{name}/address").strip()[:17]
            found[name] = _Interface(
                flags=flags, addresses=addresses.get(name, ()), is_in_sys=said == hardware.hex(":")
            )
    return found


def own_addresses() -> dict[str, tuple[str, ...]]:
    """Interface -> its addresses, IPv4 first; those that only a neighbour on the same wire could use are left out."""
    found: dict[str, tuple[str, ...]] = {}
    room = array("B", bytes(_MOST_ADDRESSES * _IFREQ_BYTES))
    with Socket(_socket.AF_INET, _socket.SOCK_DGRAM) as asking:
        try:
            answer = fcntl.ioctl(asking, _SIOCGIFCONF, struct.pack("iP", len(room), room.buffer_info()[0]))
        except OSError:
            answer = struct.pack("iP", 0, 0)
    requests = room.tobytes()[: struct.unpack("iP", answer)[0]]
    for start in range(0, len(requests), _IFREQ_BYTES):
        name = requests[start : start + 16].partition(b"\0")[0].decode().partition(":")[0]
        found[name] = (*found.get(name, ()), _socket.inet_ntoa(requests[start + 20 : start + 24]))
    for line in read_text("/proc/net/if_inet6").splitlines():
        digits, _, _, scope, _, name = line.split()
        if scope != "20":
            found[name] = (*found.get(name, ()), _socket.inet_ntop(_socket.AF_INET6, bytes.fromhex(digits)))
    return found


def inner_addresses() -> frozenset[str]:
    """Of bridges to this host's own containers and virtual machines."""
    if not any(os.path.isdir(f"{_SYS}/class/net/{name}/bridge") for name in names_in(f"{_SYS}/class/net")):
        return frozenset()
    bridges = [
        interface
        for name, interface in _ask_kernel().items()
        if interface.addresses and interface.is_in_sys and _is_inner_bridge(f"{_SYS}/class/net/{name}")
    ]
    return frozenset(address for bridge in bridges for address in bridge.addresses)


def _is_inner_bridge(net: str) -> bool:
    """docker0, virbr0: the same address on every host, and no way out."""
    return os.path.isdir(f"{net}/bridge") and _device(net) is None


def _device(net: str, depth: int = 3) -> str | None:
    """The folder of the hardware behind an interface; that of a bond, a VLAN or a bridge is one it stands on."""
    if os.path.isdir(f"{net}/device"):
        return os.path.realpath(f"{net}/device")
    lower = [name.removeprefix("lower_") for name in names_in(net) if name.startswith("lower_")] if depth else []
    folders = (_device(f"{os.path.dirname(net)}/{name}", depth - 1) for name in lower)
    return next((folder for folder in folders if folder is not None), None)


def link_speed_bits_per_s(net: str) -> float | None:
    """As the kernel says of an interface, by its folder under /sys/class/net; not known without hardware."""
    megabits = read_int(f"{net}/speed")
    # what has no hardware behind it makes its speed up: a veth says 10 Gbit/s whatever carries it
    return megabits * 1e6 if megabits is not None and megabits > 0 and _device(net) is not None else None


def bus_id_of(nic: Nic, sys_root: str | Path = _SYS) -> str | None:
    """Where its hardware sits on the PCI bus (`0000:81:00.0`); None for what has none there."""
    port = f"{sys_root}/class/infiniband/{nic.hca.partition(':')[0]}" if nic.hca else ""
    device = _device(f"{sys_root}/class/net/{nic.name}") or (port and _device(port))
    # a virtio interface hangs below its PCI device
    names = device.split("/")[:-3:-1] if device else []
    return next((name for name in names if name.count(":") == 2 and "." in name), None)


def _numa(net: str) -> int | None:
    device = _device(net)
    if device is None:
        return None
    # a virtio interface hangs below its PCI device
    domains = (read_int(f"{folder}/numa_node") for folder in (device, os.path.dirname(device)))
    return next((domain for domain in domains if domain is not None and domain >= 0), None)


def _infiniband_ports(sys_root: Path, interfaces: Mapping[str, Nic], *, needs_address: bool) -> Iterator[Nic]:
    """Active ports, each as the interface it carries, or under its own name where nobody set up IP over it."""
    for port in sorted((sys_root / "class/infiniband").glob("*/ports/[0-9]*")):
        if not read_text(port / "state").startswith("4"):
            continue
        device = port.parent.parent
        hca = f"{device.name}:{port.name}"
        speed = _leading_number(read_text(port / "rate"))
        speed = None if speed is None else speed * 1e9
        is_roce = read_text(port / "link_layer").strip() == "Ethernet"
        carried = _carried(sys_root, device, int(port.name))
        nic = next((interfaces[name] for name in carried if name in interfaces), None)
        if nic is not None and (nic.addresses or not needs_address):
            yield replace(nic, hca=hca, speed_bits_per_s=speed or nic.speed_bits_per_s, is_roce=is_roce)
        elif not is_roce:
            # over Ethernet a port without an address reaches nobody
            domain = read_int(device / "device/numa_node")
            yield Nic(
                name=hca,
                speed_bits_per_s=speed,
                numa=domain if domain is not None and domain >= 0 else None,
                hca=hca,
            )


def _carried(sys_root: Path, device: Path, port: int) -> list[str]:
    """Interfaces of that port, and the bonds that they belong to."""
    names = [
        path.name
        for path in sorted((device / "device/net").glob("*"))
        if (read_int(sys_root / "class/net" / path.name / "dev_port") or 0) == port - 1
    ]
    masters = [sys_root / "class/net" / name / "master" for name in names]
    return [*names, *(master.resolve().name for master in masters if master.is_symlink())]


def _leading_number(text: str) -> float | None:
    """400 of `400 Gb/sec (4X NDR)`."""
    try:
        return float(text.split(maxsplit=1)[0])
    except (ValueError, IndexError):
        return None


def _by_number(name: str) -> tuple[tuple[str, int], ...]:
    """mlx5_2 before mlx5_10: texts and the numbers behind them."""
    found = [("", -1)]
    for letter in name:
        text, number = found[-1]
        if letter in _DIGITS:
            found[-1] = text, 10 * max(number, 0) + int(letter)
        elif number < 0:
            found[-1] = text + letter, -1
        else:
            found.append((letter, -1))
    return tuple(found)


# towards others


def choose_interface(nics: Sequence[Nic], peers: Sequence[str], wanted: str | None = None) -> tuple[str, str]:
    """(address, interface) at which the peers reach this host: the one asked for, else that of the route to them.

    Where several interfaces lie on the peers' network, the fastest. Never the loopback, which another host has as well.
    """
    own = {name: found for name, found in own_addresses().items() if not found[0].startswith("127.")}
    own.update({nic.name: nic.addresses for nic in nics if nic.addresses})
    if wanted is not None:
        return _wanted(own, nics, wanted)
    for target in (address for peer in peers for address in _resolve(peer)):
        source = _source_address(target)
        name = next((name for name, addresses in own.items() if source in addresses), None)
        if source is not None and name is not None:
            return faster_neighbour(nics, read_text("/proc/net/route"), target, source, name)
    for name in [*(nic.name for nic in nics), *own]:
        if own.get(name):
            return own[name][0], name
    raise TopoutError(
        f"{_socket.gethostname()} has no network address at which other hosts could reach it.",
        why="no interface but the loopback is up and has an address",
        do="bring one up, or run on one host",
        exit_code=ExitCode.ENVIRONMENT,
    )


def _wanted(own: Mapping[str, tuple[str, ...]], nics: Sequence[Nic], wanted: str) -> tuple[str, str]:
    if wanted in own:
        return own[wanted][0], wanted
    without = [nic.name for nic in nics if nic.name == wanted]
    usable = ", ".join(f"{name} ({addresses[0]})" for name, addresses in own.items())
    raise TopoutError(
        f"{_socket.gethostname()} cannot use --interface {wanted}.",
        why=f"{wanted} has no address" if without else f"{_socket.gethostname()} has no such interface that is up",
        do=f"try one of {usable}" if usable else "leave it out",
    )


def _resolve(peer: str) -> list[str]:
    try:
        found = {
            str(answer[4][0]): answer[0] for answer in _socket.getaddrinfo(peer.encode(), None, type=_socket.SOCK_DGRAM)
        }
    except OSError:
        return []
    return sorted(found, key=lambda address: found[address] != _socket.AF_INET)


def _source_address(target: str) -> str | None:
    """The address this host would send from; connecting a datagram socket sends nothing."""
    family = _socket.AF_INET6 if ":" in target else _socket.AF_INET
    try:
        with Socket(family, _socket.SOCK_DGRAM) as trying:
            trying.connect((target, 9))
            source = str(trying.getsockname()[0])
    except OSError:
        return None
    return None if source.startswith("127.") or source == "::1" else source


def faster_neighbour(nics: Sequence[Nic], routes: str, target: str, source: str, name: str) -> tuple[str, str]:
    """What the kernel's route chose, unless a faster interface lies on the very same network as the target.

    `routes` is the text of /proc/net/route: addresses in hex, in the byte order of this machine.
    """
    if ":" in target:
        return source, name
    networks = networks_with(routes, target)
    if name not in networks:
        return source, name
    best, best_speed = (source, name), next((nic.speed_bits_per_s or 0.0 for nic in nics if nic.name == name), 0.0)
    for nic in nics:
        own = own_address_in(nic, networks[name])
        speed = nic.speed_bits_per_s or 0.0
        if networks.get(nic.name) == networks[name] and own is not None and speed > best_speed:
            best, best_speed = (own, nic.name), speed
    return best


def networks_with(routes: str, target: str) -> dict[str, tuple[int, int]]:
    """Interface -> (network, mask) of that which has the target in it, without a gateway."""
    wanted = _as_number(target)
    networks: dict[str, tuple[int, int]] = {}
    for line in routes.splitlines()[1:]:
        words = line.split()
        network, gateway, flags, mask = (int(words[column], 16) for column in (1, 2, 3, 7))
        if flags & 1 and gateway == 0 and wanted & mask == network:
            networks[words[0]] = (network, mask)
    return networks


def own_address_in(nic: Nic, network: tuple[int, int] | None) -> str | None:
    if network is None:
        return None
    number, mask = network
    return next((own for own in nic.addresses if ":" not in own and _as_number(own) & mask == number), None)


def _as_number(address: str) -> int:
    return int.from_bytes(_socket.inet_aton(address), sys.byteorder)


# nearest


def comparable_nics(nics: Sequence[Nic]) -> tuple[Nic, ...]:
    """Those that training may use alike: InfiniBand where there is any, and none much slower than the fastest.

    InfiniBand and RoCE do not reach each other, so of both only the faster kind, which storage seldom is; else the one
    with more ports.
    """
    kinds = [[nic for nic in nics if nic.hca and nic.is_roce is is_roce] for is_roce in (False, True)]
    ports = max(kinds, key=lambda ports: (max((nic.speed_bits_per_s or 0.0 for nic in ports), default=0.0), len(ports)))
    candidates = ports or [nic for nic in nics if nic.speed_bits_per_s] or list(nics)
    fastest = max((nic.speed_bits_per_s or 0.0 for nic in candidates), default=0.0)
    return tuple(nic for nic in candidates if (nic.speed_bits_per_s or 0.0) >= _COMPARABLE_SHARE * fastest)


def nearest_nic(host: Host, numa: Sequence[int], turn: int = 0) -> Nic | None:
    """In one of these domains, else on their socket, else any; neighbours take turns where several are equally near.

    None where the host has a single one, or where a rank is spread so wide that no one is nearest.
    """
    nics = comparable_nics(host.nics)
    sockets = {core.socket for core in host.cores if core.numa in numa}
    if len(nics) < 2 or len(sockets) != 1:
        return None
    on_socket = {core.numa for core in host.cores if core.socket in sockets}
    for domains in (set(numa), on_socket, {nic.numa for nic in nics}):
        near = [nic for nic in nics if nic.numa in domains]
        if near:
            return near[turn % len(near)]
    return None


# variables


def nic_variables(
    nic: Nic | None, interface: str | None, nics: Sequence[Nic] = (), rail: str | None = None
) -> dict[str, str]:
    """What Gloo, NCCL, TensorPipe and UCX read; `nic` is the rank's nearest, `nics` are all of its host.

    Sockets go over the interface of the job's addresses, those of Gloo over the rank's `rail` where it has one. NCCL
    gets the same in every rank of a host, all comparable ports and one interface: it finds the nearest port itself and
    sends over several, and ranks that see different ones build rings that do not fit (NVIDIA/nccl#1478).
    """
    variables: dict[str, str] = {}
    if interface is not None:
        # NCCL takes names as beginnings of names unless told so
        variables.update(
            GLOO_SOCKET_IFNAME=rail or interface, TP_SOCKET_IFNAME=interface, NCCL_SOCKET_IFNAME=f"={interface}"
        )
    ports = [other.hca for other in comparable_nics(nics) if other.hca] or ([nic.hca] if nic and nic.hca else [])
    if ports:
        variables["NCCL_IB_HCA"] = "=" + ",".join(sorted(ports, key=_by_number))
    if nic is not None and nic.hca:
        variables["UCX_NET_DEVICES"] = nic.hca
    return variables
