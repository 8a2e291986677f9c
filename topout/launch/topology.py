"""This host as a launcher needs to know it: the cores it may use and where they sit, memory, GPUs.

Not for measuring what the host does (see `record.sampler`). GPUs are counted without torch: it takes seconds to import.
"""

import os
import platform
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from topout.schema.world import Core, Host

_SYS = Path("/sys")
_PROC = Path("/proc")
_GPU_LINE = re.compile(r"^GPU (\d+): (.+?) \(UUID: (\S+)\)")


def read_host(environ: Mapping[str, str] = os.environ) -> Host:
    return Host(
        name=socket.gethostname().split(".")[0] or "localhost",
        cores=read_cores(allowed_cores()),
        memory_bytes=memory_bytes(),
        gpus=visible_gpus(list_gpus(), environ.get("CUDA_VISIBLE_DEVICES")),
    )


def allowed_cores() -> list[int]:
    """The logical processors this process may run on: a cpuset or `taskset` leaves fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def read_cores(allowed: list[int], sys_root: Path = _SYS) -> tuple[Core, ...]:
    """Where each processor sits; a machine that does not tell is taken as one socket without hyper-threads."""
    numa_of = _numa_of_cores(sys_root)
    cores = []
    for index in allowed:
        topology = sys_root / f"devices/system/cpu/cpu{index}/topology"
        socket_id = max(_read_int(topology / "physical_package_id", 0), 0)
        cores.append(
            Core(
                index=index,
                physical=_read_int(topology / "core_id", index),
                socket=socket_id,
                numa=numa_of.get(index, socket_id),
            )
        )
    return tuple(cores)


def _numa_of_cores(sys_root: Path) -> dict[int, int]:
    found = {}
    for node in sys_root.glob("devices/system/node/node[0-9]*"):
        for index in parse_cpu_list(_read_text(node / "cpulist")):
            found[index] = int(node.name.removeprefix("node"))
    return found


def parse_cpu_list(text: str) -> list[int]:
    """`0-3,8` is 0, 1, 2, 3, 8: the kernel's way to write a set of processors."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        found.extend(range(int(first), int(last if dash else first) + 1))
    return found


def memory_bytes() -> int:
    """Memory this process may use: the machine's, or the control group's limit where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [
        int(text)
        for name in ("memory.max", "memory.limit_in_bytes")
        if (text := _read_text(cgroup_folder("memory") / name).strip()).isdigit()
    ]
    return min([total, *limits])


def cpu_limit() -> float | None:
    """Processors' worth of time that the control group grants (2.5 = two and a half); None without a limit."""
    folder = cgroup_folder("cpu")
    quota, _, period = _read_text(folder / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = (_read_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        return int(quota) / int(period)
    return None


def cgroup_folder(controller: str, proc_root: Path = _PROC, sys_root: Path = _SYS) -> Path:
    """Where the control group of this process keeps a controller's files, in the second or the first version."""
    unified = sys_root / "fs/cgroup"
    path = "/"
    for line in _read_text(proc_root / "self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controller in controllers.split(","):
            first_version = sys_root / "fs/cgroup" / controller
            inside = first_version / group.lstrip("/")
            # a container often sees its own group mounted as the root
            return inside if inside.is_dir() else first_version
        if not controllers:
            path = group
    inside = unified / path.lstrip("/")
    return inside if inside.is_dir() else unified


def cpu_model() -> str:
    for line in _read_text(_PROC / "cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def list_gpus() -> list[tuple[str, str]]:
    """(name, UUID) of every NVIDIA GPU, in index order; empty without a driver."""
    if shutil.which("nvidia-smi"):
        try:
            listing = subprocess.run(
                ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False
            ).stdout
        except (OSError, subprocess.TimeoutExpired):
            listing = ""
        found = [match for line in listing.splitlines() if (match := _GPU_LINE.match(line))]
        if found:
            return [(match[2], match[3]) for match in found]
    informations = sorted((_PROC / "driver/nvidia/gpus").glob("*/information"))
    return [(_field(text, "Model"), _field(text, "GPU UUID")) for text in map(_read_text, informations)]


def visible_gpus(gpus: list[tuple[str, str]], visible: str | None) -> tuple[str, ...]:
    """Names of the GPUs that CUDA will show, in the order in which it will number them.

    CUDA stops at the first entry it does not know, so this does too.
    """
    if visible is None:
        return tuple(name for name, _ in gpus)
    shown: list[str] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.isdigit() and int(entry) < len(gpus):
            shown.append(gpus[int(entry)][0])
        elif entry.startswith("MIG-"):
            shown.append(gpus[0][0] if gpus else "MIG device")
        elif entry.startswith("GPU-") and (names := [name for name, uuid in gpus if uuid.startswith(entry)]):
            shown.append(names[0])
        else:
            break
    return tuple(shown)


def _field(text: str, name: str) -> str:
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith(f"{name}:")), "")


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _read_int(path: Path, otherwise: int) -> int:
    try:
        return int(_read_text(path))
    except ValueError:
        return otherwise
