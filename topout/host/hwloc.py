"""What hwloc sees of this host, where it is installed: processors, and the NUMA domains that each device is near to.

Asked for the domain of a GPU or NIC that the kernel does not place, as in virtual machines and with some firmware: a
site can tell hwloc (HWLOC_XMLFILE, HWLOC_PCI_LOCALITY), and hwloc knows some boards by itself. Also asked by the doctor
and by `--bind report`, since MPI libraries bind by its view. Not for reading cores: the kernel's files are everywhere,
and quicker (see `topology`). Whatever goes wrong here, nothing was asked.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from topout.host.gpus import numa_of_device
from topout.host.nics import bus_id_of, comparable_nics
from topout.schema.counted import counted
from topout.schema.world import Core, Host, Nic

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_SYS = "/sys"
_PROGRAMS = ("lstopo-no-graphics", "hwloc-ls", "lstopo")
_LIMIT_S = 3.0
"""It takes some hundredths of a second on a large host."""
_WITHOUT = "-cuda,-nvml,-opencl,-rsmi,-levelzero,-gl"
"""Parts of hwloc that wake each GPU, which may take seconds; where the GPUs sit is known without them."""
_SOURCES = ("HWLOC_XMLFILE", "HWLOC_SYNTHETIC", "HWLOC_FSROOT", "HWLOC_CPUID_PATH")
"""Variables by which it sees another machine than this one."""
_SOCKETS = ("Package", "Socket")
_PLACED_CLASSES = ("02", "03", "12")
"""Of PCI devices: networks, displays, accelerators."""
_MOST_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class HwlocView:
    """The whole machine, granted or not."""

    cores: tuple[Core, ...]
    near: dict[str, frozenset[int]]
    """Bus number of a GPU or network card -> NUMA domains beside it; empty where hwloc does not know either."""


@dataclass(frozen=True, kw_only=True)
class HwlocOpinion:
    """hwloc's view of what a job is granted, held against the kernel's."""

    num_sockets: int
    num_domains: int
    num_cores: int
    differences: tuple[str, ...] = ()
    """Parts of a sentence; empty when both see the same."""

    @property
    def words(self) -> str:
        sockets, domains = counted(self.num_sockets, "socket"), counted(self.num_domains, "NUMA domain")
        return f"{sockets}, {domains}, {counted(self.num_cores, 'core')}"


def ask_hwloc(environ: Mapping[str, str] = os.environ, sys_root: str | Path = _SYS) -> HwlocView | None:
    """None where it is not installed, takes too long or says nothing that can be read."""
    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if program is None:
        return None
    settings = dict(environ)
    # one of them hides the other, and telling hwloc its parts hides them all
    if not any(name in settings for name in _SOURCES):
        own = {"HWLOC_COMPONENTS": _WITHOUT} if str(sys_root) == _SYS else {"HWLOC_FSROOT": str(Path(sys_root).parent)}
        settings = {**own, **settings}
    # with what a control group hides: without it a device beside hidden cores would be near to all others
    words = [program, "--of", "xml", "--whole-system"]
    try:
        done = subprocess.run(words, env=settings, capture_output=True, timeout=_LIMIT_S, check=True)
        return read_view(done.stdout.decode())
    # what the parser raises is a SyntaxError
    except (OSError, ValueError, SyntaxError, subprocess.SubprocessError):
        return None


def read_view(xml: str) -> HwlocView:
    """What hwloc writes, of version 1 or 2."""
    from xml.etree import ElementTree

    machine = ElementTree.fromstring(xml).find("object")
    if machine is None:
        raise ValueError("hwloc shows no machine")
    found = [(item.get("type"), int(item.get("os_index") or 0), _bits(item.get("cpuset") or "0"))
             for item in machine.iter("object") if item.get("cpuset")]  # fmt: skip

    def holder(kinds: Sequence[str], processor: int, otherwise: int) -> int:
        """Of several the narrowest, of memory beside memory the first."""
        around = [(len(bits), number) for kind, number, bits in found if kind in kinds and processor in bits]
        return min(around, default=(0, otherwise))[1]

    first_of = {index: min(bits) for kind, _, bits in found if kind == "Core" for index in bits}
    processors = sorted(number for kind, number, _ in found if kind == "PU")
    cores = [
        Core(
            index=index,
            physical=first_of.get(index, index),
            socket=holder(_SOCKETS, index, 0),
            numa=holder(("NUMANode",), index, 0),
        )
        for index in processors
    ]
    # what hangs on the machine itself is near to everything, so to nothing
    return HwlocView(cores=tuple(cores), near=dict(_devices(machine, frozenset())))


def _devices(parent: "Element", near: frozenset[int]) -> Iterator[tuple[str, frozenset[int]]]:
    for item in parent.findall("object"):
        if item.get("type") == "PCIDev" and (item.get("pci_type") or "")[:2] in _PLACED_CLASSES:
            yield (item.get("pci_busid") or "").lower(), near
        # devices and bridges have no processors of their own
        yield from _devices(item, _bits(item.get("nodeset") or "0") if item.get("cpuset") else near)


def _bits(mask: str) -> frozenset[int]:
    """`0x1,,0x3` is 64, 1, 0: words of 32 bits, those that are zero left out."""
    number = 0
    for word in mask.split(","):
        number = number << 32 | int(word or "0", 16)
    return frozenset(bit for bit in range(number.bit_length()) if number >> bit & 1)


# placing what the kernel does not place


def place_devices(
    gpus: Sequence[tuple[str, int | None]],
    nics: Sequence[Nic],
    with_cores: set[int],
    environ: Mapping[str, str],
    sys_root: str | Path = _SYS,
) -> tuple[tuple[int | None, ...], tuple[Nic, ...]]:
    """The domains of GPUs, given as (bus number, domain), and the NICs: as they are, but for those without a domain.

    `with_cores` are the host's domains that have cores. A NIC counts where there are several to choose from.
    """
    kept = tuple(domain for _, domain in gpus), tuple(nics)
    choice = comparable_nics(nics)
    unplaced = [nic for nic in choice if nic.numa is None] if len(choice) > 1 else []
    buses = {nic.name: bus for nic in unplaced if (bus := bus_id_of(nic, sys_root))}
    if not buses and not any(bus and domain is None for bus, domain in gpus):
        return kept
    view = ask_hwloc(environ, sys_root)
    if view is None:
        return kept

    def found(bus: str) -> int | None:
        near = view.near.get(bus.lower(), frozenset()) & with_cores
        return next(iter(near)) if len(near) == 1 else None

    return (
        tuple(found(bus) if domain is None else domain for bus, domain in gpus),
        tuple(replace(nic, numa=found(buses[nic.name])) if nic.name in buses else nic for nic in nics),
    )


# comparing


def compare(host: Host, view: HwlocView, sys_root: str | Path = _SYS) -> HwlocOpinion:
    """Of the granted processors, and of each GPU and network card that both place."""
    own = {core.index: core for core in host.cores}
    theirs = {core.index: core for core in view.cores if core.index in own}
    differences = []
    if len(theirs) < len(own):
        differences.append(f"of {len(own)} granted processors hwloc shows {len(theirs)}")
    else:
        for name, part in _PARTS.items():
            one, other = _cut(own, part), _cut(theirs, part)
            if len(one) != len(other):
                differences.append(f"{len(one)} {name} by the kernel, {len(other)} by hwloc")
            elif one != other:
                differences.append(f"the {name} have other processors by hwloc than by the kernel")
    moved = [
        f"{bus} is near NUMA domain {domain} by the kernel, {', '.join(map(str, sorted(near)))} by hwloc"
        for bus, near in sorted(view.near.items())
        if near and (domain := numa_of_device(Path(sys_root), bus)) is not None and domain not in near
    ]
    more = [f"{len(moved) - _MOST_NAMED} more devices likewise"] if len(moved) > _MOST_NAMED else []
    return HwlocOpinion(
        num_sockets=len(_cut(theirs, _PARTS["sockets"])),
        num_domains=len(_cut(theirs, _PARTS["NUMA domains"])),
        num_cores=len(_cut(theirs, _PARTS["cores"])),
        differences=(*differences, *moved[:_MOST_NAMED], *more),
    )


_PARTS: dict[str, Callable[[Core], tuple[int, ...]]] = {
    "sockets": lambda core: (core.socket,),
    "NUMA domains": lambda core: (core.numa,),
    "cores": lambda core: (core.socket, core.numa, core.physical),
}


def _cut(cores: Mapping[int, Core], part: Callable[[Core], tuple[int, ...]]) -> set[frozenset[int]]:
    """The processors of each part; what the parts are called does not matter."""
    parts: dict[tuple[int, ...], set[int]] = {}
    for index, core in cores.items():
        parts.setdefault(part(core), set()).add(index)
    return {frozenset(part) for part in parts.values()}
