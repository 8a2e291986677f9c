"""How the GPUs of this host are joined, pair by pair: NVLink, XGMI, a PCIe switch, or the long way round.

NVIDIA's are asked of the driver's library (`nvml`), AMD's are in /sys. For the doctor and for `--bind report`, never
while a job starts: NCCL and RCCL find their ways themselves. Not a measurement; the doctor measures what they carry.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from topout.host.gpus import bus_id_of_node, driver_gpus, numa_of_device, properties_of
from topout.host.nvml import NvmlPair, NvmlView, ask_nvml
from topout.schema.world import Host

_SYS, _PROC = Path("/sys"), Path("/proc")
_NODES = "class/kfd/kfd/topology/nodes"
_XGMI = "11"
_NO_PEER_TO_PEER = 1 << 4
"""Of the flags of a link in the kernel's drivers/gpu/drm/amd/amdkfd/kfd_crat.h."""


class Way(StrEnum):
    """What lies between two GPUs, the shortest first."""

    NVLINK = "NVLink"
    XGMI = "XGMI"
    PCIE_SWITCH = "a PCIe switch"
    HOST_BRIDGE = "a PCIe host bridge"
    NUMA_DOMAIN = "their NUMA domain"
    SOCKET = "NUMA domains of a socket"
    SOCKETS = "the link between sockets"
    UNKNOWN = "a way that nobody tells"


_OF_ANCESTOR = {
    0: Way.PCIE_SWITCH,
    10: Way.PCIE_SWITCH,
    20: Way.PCIE_SWITCH,
    30: Way.HOST_BRIDGE,
    40: Way.NUMA_DOMAIN,
    50: Way.SOCKETS,
}
"""nvmlGpuTopologyLevel_t: one board, one switch, several switches, a host bridge, a domain, the system."""


@dataclass(frozen=True, kw_only=True)
class GpuPair:
    """Two GPUs, as the job counts them."""

    first: int
    second: int
    way: Way
    num_links: int | None = None
    """NVLinks between the two, or of each to the switch between them."""
    has_switch: bool = False
    bytes_per_s: float | None = None
    """One way, as the driver of AMD's GPUs says; None where it does not."""
    has_peer_access: bool | None = None
    """One can read the other's memory; None where nobody tells."""


@dataclass(frozen=True, kw_only=True)
class GpuLinks:
    """Of those GPUs that this process sees."""

    gpus: tuple[int, ...]
    pairs: tuple[GpuPair, ...] = ()
    links_of: dict[int, int] | None = None
    """GPU -> its NVLinks that are up, or those it reaches by XGMI; None where the GPUs know no such links."""


def read_gpu_links(host: Host, sys_root: Path = _SYS, proc_root: Path = _PROC) -> GpuLinks | None:
    """None without GPUs, and where nobody tells them apart."""
    if not host.gpu_ids:
        return None
    if all(identity.startswith("kfd ") for identity in host.gpu_ids):
        return _of_amd(host, sys_root)
    view = ask_nvml() if proc_root == _PROC else None
    return _of_nvml(host, view, sys_root) if view is not None else _of_the_bus(host, sys_root, proc_root)


# NVIDIA


def _of_nvml(host: Host, view: NvmlView, sys_root: Path) -> GpuLinks:
    listed = {gpu.uuid: place for place, gpu in enumerate(view.gpus)}
    own = {gpu: listed[identity] for gpu, identity in enumerate(host.gpu_ids) if identity in listed}
    buses = {gpu: view.gpus[place].bus_id or "" for gpu, place in own.items()}
    ends = {gpu: view.gpus[place].far_ends for gpu, place in own.items()}
    of_pair = {frozenset((pair.first, pair.second)): pair for pair in view.pairs}

    def pair(first: int, second: int) -> GpuPair:
        known = of_pair[frozenset((own[first], own[second]))]
        num_direct = (ends[first] or []).count(buses[second])
        num_to_switch = min((ends[gpu] or []).count(None) for gpu in (first, second))
        # both may be at a switch, and kept apart by it
        through = 0 if known.by_nvlink is False else num_to_switch
        return GpuPair(
            first=first,
            second=second,
            way=Way.NVLINK if num_direct or through else _of_nvidia(known, host, sys_root, buses[first], buses[second]),
            num_links=num_direct or through or None,
            has_switch=not num_direct and through > 0,
            has_peer_access=known.can_read,
        )

    has_links = any(found is not None for found in ends.values())
    return GpuLinks(
        gpus=tuple(own),
        pairs=_each(list(own), pair),
        links_of={gpu: len(found or []) for gpu, found in ends.items()} if has_links else None,
    )


def _of_nvidia(known: NvmlPair, host: Host, sys_root: Path, first: str, second: str) -> Way:
    """The driver says "system" of all that have no domain in common, on one socket or on two."""
    way = Way.UNKNOWN if known.ancestor is None else _OF_ANCESTOR.get(known.ancestor, Way.UNKNOWN)
    if way not in (Way.SOCKETS, Way.UNKNOWN):
        return way
    by_domain = _by_domain(host, sys_root, first, second)
    return way if by_domain is Way.UNKNOWN else by_domain


def _of_the_bus(host: Host, sys_root: Path, proc_root: Path) -> GpuLinks:
    """Without the driver's library: where the kernel lists them is all that is known."""
    places = {gpu.uuid or gpu.place: gpu.bus_id for gpu in driver_gpus(sys_root, proc_root)}
    own = {gpu: places[identity] for gpu, identity in enumerate(host.gpu_ids) if identity in places}

    def pair(first: int, second: int) -> GpuPair:
        return GpuPair(first=first, second=second, way=_by_bus(host, sys_root, own[first], own[second]))

    return GpuLinks(gpus=tuple(own), pairs=_each(list(own), pair))


# AMD


def _of_amd(host: Host, sys_root: Path) -> GpuLinks:
    nodes = {gpu: sys_root / _NODES / identity.removeprefix("kfd ") for gpu, identity in enumerate(host.gpu_ids)}
    own = {gpu: node for gpu, node in nodes.items() if (node / "properties").exists()}
    buses = {gpu: bus_id_of_node(properties_of(node / "properties")) for gpu, node in own.items()}
    links = {gpu: _links_from(node) for gpu, node in own.items()}

    def pair(first: int, second: int) -> GpuPair:
        link = links[first].get(own[second].name)
        is_xgmi = link is not None and link.get("type") == _XGMI
        megabytes_per_s = int(link.get("max_bandwidth", 0)) if link is not None else 0
        # where the kernel lists what is possible over the bus, what is not listed is not
        tells = all((own[gpu] / "p2p_links").is_dir() for gpu in (first, second))
        allowed = link is not None and not int(link.get("flags", 0)) & _NO_PEER_TO_PEER
        return GpuPair(
            first=first,
            second=second,
            way=Way.XGMI if is_xgmi else _by_bus(host, sys_root, buses[first], buses[second]),
            bytes_per_s=megabytes_per_s * 1e6 if is_xgmi and megabytes_per_s else None,
            has_peer_access=allowed if link is not None or tells else None,
        )

    peers = {
        gpu: sum(1 for other in own.values() if links[gpu].get(other.name, {}).get("type") == _XGMI) for gpu in own
    }
    return GpuLinks(gpus=tuple(own), pairs=_each(list(own), pair), links_of=peers if any(peers.values()) else None)


def _links_from(node: Path) -> dict[str, dict[str, str]]:
    """Node at the other end -> what is said of the link; one that the GPUs have themselves before one over the bus."""
    found: dict[str, dict[str, str]] = {}
    for kind in ("p2p_links", "io_links"):
        for path in sorted((node / kind).glob("*/properties")):
            link = properties_of(path)
            found[link.get("node_to", "").strip()] = {name: value.strip() for name, value in link.items()}
    return found


# both


def _each(gpus: list[int], pair: Callable[[int, int], GpuPair]) -> tuple[GpuPair, ...]:
    return tuple(pair(first, second) for place, first in enumerate(gpus) for second in gpus[place + 1 :])


def _by_bus(host: Host, sys_root: Path, first: str, second: str) -> Way:
    """Where the folders of the two devices part: below a bridge that is none of the processor's, or above."""
    folders = [(sys_root / "bus/pci/devices" / bus).resolve().parent for bus in (first, second)]
    shared = os.path.commonpath(folders).split("/")
    if any(name.count(":") == 2 for name in shared):
        return Way.PCIE_SWITCH
    if any(name.startswith("pci") and name.count(":") == 1 for name in shared):
        return Way.HOST_BRIDGE
    return _by_domain(host, sys_root, first, second)


def _by_domain(host: Host, sys_root: Path, first: str, second: str) -> Way:
    domains = [numa_of_device(sys_root, bus) for bus in (first, second)]
    if None in domains:
        return Way.UNKNOWN
    if domains[0] == domains[1]:
        return Way.NUMA_DOMAIN
    socket_of = {core.numa: core.socket for core in host.cores}
    sockets = [socket_of.get(domain) for domain in domains if domain is not None]
    if None in sockets:
        return Way.UNKNOWN
    return Way.SOCKET if sockets[0] == sockets[1] else Way.SOCKETS
