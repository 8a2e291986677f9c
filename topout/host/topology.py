"""This host as a launcher needs to know it: the cores it may use and where they sit, memory, GPUs, NICs, limits.

Read from /sys and /proc, whose roots may be given, so that a recorded machine reads like this one. Not from hwloc: most
of what it adds (caches, kinds of memory) decides no binding, and most compute nodes and containers lack it. It is asked
where the kernel does not say which domain a GPU or NIC is in and the host has several (see `hwloc`); the doctor and a
test hold its view and ours against each other. Not for measuring what the host does (see `record.sampler`).
"""

# paths are texts here: `pathlib` takes longer to load than all of this to read
# ruff: noqa: PTH112, PTH120

from __future__ import annotations

import _socket
import os

from topout.host.kernel_files import DEVICES_OF_NVIDIA, field_of, names_in, read_int, read_text
from topout.host.nics import comparable_nics, read_nics
from topout.schema.light_dataclass import replace
from topout.schema.world import Core, Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    Folder = str | Path

_SYS = "/sys"
_PROC = "/proc"
_ARM_CORES = {
    ("0x41", "0xd0c"): "Neoverse N1",
    ("0x41", "0xd40"): "Neoverse V1",
    ("0x41", "0xd49"): "Neoverse N2",
    ("0x41", "0xd4f"): "Neoverse V2",
    ("0x46", "0x001"): "A64FX",
    ("0x48", "0xd01"): "Kunpeng 920",
    ("0xc0", "0xac3"): "Ampere-1",
}
"""ARM kernels tell who made a core and its number, not its name."""


def read_host(environ: Mapping[str, str] = os.environ, sys_root: Folder = _SYS, proc_root: Folder = _PROC) -> Host:
    """Everything but the address; which interface leads to the other hosts depends on them."""
    cores = read_cores(allowed_cores(sys_root, proc_root), sys_root)
    gpus = []
    # a container may hide the driver's part of /proc
    devices = DEVICES_OF_NVIDIA if proc_root == _PROC else ()
    if any(map(os.path.exists, (f"{proc_root}/driver/nvidia", f"{sys_root}/class/kfd", *devices))):
        from pathlib import Path

        from topout.host.gpus import list_gpus, visible_gpus

        gpus = visible_gpus(list_gpus(Path(sys_root), Path(proc_root)), environ)
    with_cores = set(_numa_of_cores(sys_root).values())
    gpu_numa = tuple(_domain_with_cores(gpu.numa, with_cores, sys_root) for gpu in gpus)
    nics = read_nics(sys_root)
    choice = comparable_nics(nics)
    unplaced = [*gpu_numa, *(nic.numa for nic in choice if len(choice) > 1)]
    if len(with_cores) > 1 and None in unplaced:
        from topout.host.hwloc import place_devices

        buses = [(gpu.bus_id, domain) for gpu, domain in zip(gpus, gpu_numa, strict=True)]
        gpu_numa, nics = place_devices(buses, nics, with_cores, environ, sys_root)
    return Host(
        name=_name(proc_root),
        cores=cores,
        memory_bytes=memory_bytes(sys_root, proc_root),
        gpus=tuple(gpu.name for gpu in gpus),
        gpu_ids=_identities([gpu.place if gpu.vendor == "amd" else gpu.uuid or gpu.place for gpu in gpus]),
        gpu_numa=gpu_numa,
        nics=nics,
        cpu_model=cpu_model(proc_root),
        cpu_limit=cpu_limit(sys_root, proc_root),
        num_logical_cores=len(parse_cpu_list(read_text(f"{sys_root}/devices/system/cpu/online"))) or None,
    )


def _identities(found: Sequence[str]) -> tuple[str, ...]:
    """Empty unless each GPU has one of its own: MIG devices have that of the GPU they are part of."""
    return tuple(found) if all(found) and len(set(found)) == len(found) else ()


def join_hosts(views: Sequence[Host]) -> Host:
    """One host out of what its tasks see: a scheduler may have shown each of them its own cores and GPUs only."""
    cores = {core.index: core for view in views for core in view.cores}
    gpus = max((_gpus_of([view]) for view in views), key=len)
    if all(view.gpu_ids for view in views):
        gpus = _gpus_of(views)
    return replace(
        views[0],
        cores=tuple(cores[index] for index in sorted(cores)),
        gpus=tuple(name for _, name, _ in gpus),
        gpu_ids=tuple(identity for identity, _, _ in gpus) if all(view.gpu_ids for view in views) else (),
        gpu_numa=tuple(domain for _, _, domain in gpus) if any(view.gpu_numa for view in views) else (),
    )


def _gpus_of(views: Sequence[Host]) -> list[tuple[str, str, int | None]]:
    """(identity, name, domain) of each GPU once, in the order in which the tasks see them."""
    found: dict[str, tuple[str, str, int | None]] = {}
    for view in views:
        domains = view.gpu_numa or (None,) * len(view.gpus)
        identities = view.gpu_ids or tuple(map(str, range(len(view.gpus))))
        for seen in zip(identities, view.gpus, domains, strict=True):
            found.setdefault(seen[0], seen)
    return list(found.values())


def _name(proc_root: Folder) -> str:
    name = _socket.gethostname() if proc_root == _PROC else read_text(f"{proc_root}/sys/kernel/hostname").strip()
    return name.split(".")[0] or "localhost"


# cores


def allowed_cores(sys_root: Folder = _SYS, proc_root: Folder = _PROC) -> list[int]:
    """The logical processors this process may run on: a cpuset or `taskset` leaves fewer than the machine has."""
    if proc_root == _PROC and hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    online = parse_cpu_list(read_text(f"{sys_root}/devices/system/cpu/online"))
    granted = parse_cpu_list(field_of(read_text(f"{proc_root}/self/status"), "Cpus_allowed_list"))
    # the kernel's mask keeps processors that are switched off
    return sorted(set(granted) & set(online)) or online or list(range(os.cpu_count() or 1))


def read_cores(allowed: Sequence[int], sys_root: Folder = _SYS) -> tuple[Core, ...]:
    """Where each processor sits; a machine that does not tell is taken as one socket without hyper-threads."""
    numa_of = _numa_of_cores(sys_root)
    first_of: dict[int, int] = {}
    cores = []
    for index in allowed:
        topology = f"{sys_root}/devices/system/cpu/cpu{index}/topology"
        socket_id = max(read_int(f"{topology}/physical_package_id") or 0, 0)
        if index not in first_of:
            # the number of a core may repeat from die to die; the first of its hyper-threads does not
            siblings = read_text(f"{topology}/core_cpus_list") or read_text(f"{topology}/thread_siblings_list")
            together = parse_cpu_list(siblings)
            first_of.update(dict.fromkeys(together, together[0]) if index in together else {})
        cores.append(
            Core(
                index=index,
                physical=first_of[index] if index in first_of else _core_id(topology, index),
                socket=socket_id,
                numa=numa_of.get(index, socket_id),
            )
        )
    return tuple(cores)


def _core_id(topology: str, otherwise: int) -> int:
    number = read_int(f"{topology}/core_id")
    return otherwise if number is None else number


def parse_cpu_list(text: str) -> list[int]:
    """`0-3,8` is 0, 1, 2, 3, 8: the kernel's way to write a set of processors."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        found.extend(range(int(first), int(last if dash else first) + 1))
    return found


def _numa_of_cores(sys_root: Folder) -> dict[int, int]:
    return {
        index: domain
        for domain in _domains(sys_root)
        for index in parse_cpu_list(read_text(f"{sys_root}/devices/system/node/node{domain}/cpulist"))
    }


def _domains(sys_root: Folder) -> list[int]:
    names = [name.removeprefix("node") for name in names_in(f"{sys_root}/devices/system/node")]
    return sorted(int(name) for name in names if name.isdecimal())


def _domain_with_cores(domain: int | None, with_cores: set[int], sys_root: Folder) -> int | None:
    """A domain may be memory alone (Grace Hopper, KNL): the nearest one that has cores stands for it."""
    if domain is None or domain in with_cores or not with_cores:
        return domain
    distances = read_text(f"{sys_root}/devices/system/node/node{domain}/distance").split()
    known = dict(zip(_domains(sys_root), map(int, distances), strict=False))
    return min(sorted(with_cores), key=lambda other: known.get(other, 255)) if known else None


# limits


def memory_bytes(sys_root: Folder = _SYS, proc_root: Folder = _PROC) -> int:
    """Memory this process may use: the machine's, or what the tightest control group above it allows."""
    total_kb = field_of(read_text(f"{proc_root}/meminfo"), "MemTotal").removesuffix("kB").strip()
    total = int(total_kb) * 1024 if total_kb.isdigit() else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [
        int(text)
        for folder in groups_above("memory", sys_root, proc_root)
        for name in ("memory.max", "memory.limit_in_bytes")
        if (text := read_text(f"{folder}/{name}").strip()).isdigit()
    ]
    return min([total, *limits])


def cpu_limit(sys_root: Folder = _SYS, proc_root: Folder = _PROC) -> float | None:
    """Processors' worth of time that the tightest control group grants (2.5 = two and a half); None without one."""
    limits = []
    for folder in groups_above("cpu", sys_root, proc_root):
        quota, _, period = read_text(f"{folder}/cpu.max").strip().partition(" ")
        if not quota:
            quota, period = (read_text(f"{folder}/cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def cgroup_folder(controller: str, proc_root: Folder = _PROC, sys_root: Folder = _SYS) -> str:
    """Where the control group of this process keeps a controller's files, in the second or the first version."""
    unified = f"{sys_root}/fs/cgroup"
    path = "/"
    for line in read_text(f"{proc_root}/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controller in controllers.split(","):
            first_version = f"{unified}/{controller}"
            inside = f"{first_version}/{group.strip('/')}".rstrip("/")
            # a container often sees its own group mounted as the root
            return inside if os.path.isdir(inside) else first_version
        if not controllers:
            path = group
    inside = f"{unified}/{path.strip('/')}".rstrip("/")
    return inside if os.path.isdir(inside) else unified


def groups_above(controller: str, sys_root: Folder, proc_root: Folder) -> Iterator[str]:
    """The process's own group first, then its parents: any of them may hold the tightest limit."""
    top = f"{sys_root}/fs/cgroup"
    folder = cgroup_folder(controller, proc_root, sys_root)
    while folder.startswith(f"{top}/"):
        yield folder
        folder = os.path.dirname(folder)
    yield top


def cpu_model(proc_root: Folder = _PROC) -> str:
    fields: dict[str, str] = {}
    # the first processor is there; to list all of a large host takes the kernel longer than the rest here
    for line in read_text(f"{proc_root}/cpuinfo", is_whole=False).splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
        if name.strip() == "model name":
            break
    arm = _ARM_CORES.get((fields.get("CPU implementer", ""), fields.get("CPU part", "")))
    # POWER says "cpu : POWER9, altivec supported"
    power = fields.get("cpu", "").partition(",")[0]
    return fields.get("model name") or arm or power or os.uname().machine
