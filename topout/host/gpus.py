"""The GPUs of this host, as CUDA or HIP will number them, and the NUMA domain of each. Without torch: it takes seconds.

NVIDIA's are asked of nvidia-smi, because only the driver knows which of them a scheduler's control group hides; AMD's
are in /sys, where hidden ones cannot be read. CUDA may number GPUs of different models by speed (CUDA_DEVICE_ORDER);
here the order is always that of the bus. Not for Intel's GPUs, which topout does not know yet.
"""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from topout.host.kernel_files import DEVICES_OF_NVIDIA, field_of, read_int, read_text

_PROC = Path("/proc")
_LIST_S = 20.0
_GPU_LINE = re.compile(r"^GPU \d+: (.+?) \(UUID: (\S+)\)")
_MIG_LINE = re.compile(r"^\s+MIG .*\(UUID: (\S+)\)")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU that the driver shows."""

    name: str
    vendor: str
    """`nvidia` or `amd`."""
    uuid: str = ""
    """Empty where the driver does not tell it."""
    place: str = ""
    """Where the kernel lists it; tells GPUs without a UUID apart."""
    bus_id: str = ""
    """Empty where nobody tells it."""
    numa: int | None = None
    parts: tuple[str, ...] = ()
    """UUIDs of its MIG devices."""


def list_gpus(sys_root: Path, proc_root: Path) -> list[Gpu]:
    """All that the driver shows, in the order of the bus; empty without a driver."""
    return _nvidia_gpus(sys_root, proc_root) or _amd_gpus(sys_root)


def visible_gpus(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> list[Gpu]:
    """Those that CUDA or HIP will show a process with these variables, in the order in which it will number them."""
    shown = list(gpus)
    if any(gpu.vendor == "amd" for gpu in gpus):
        shown = _select(shown, environ.get("ROCR_VISIBLE_DEVICES"))
        # HIP numbers what ROCr has left over
        return _select(shown, environ.get("HIP_VISIBLE_DEVICES", environ.get("CUDA_VISIBLE_DEVICES")))
    return _enumerated(_select(shown, environ.get("CUDA_VISIBLE_DEVICES")))


def _enumerated(shown: list[Gpu]) -> list[Gpu]:
    """A process gets one MIG device at most, the first, and no whole GPU beside it (NVIDIA, MIG User Guide)."""
    return [gpu for gpu in shown if gpu.parts][:1] or shown


def _select(gpus: list[Gpu], entries: str | None) -> list[Gpu]:
    """Both drivers stop at the first entry they do not know, so this does too."""
    if entries is None:
        return gpus
    shown: list[Gpu] = []
    for entry in (part.strip() for part in entries.split(",")):
        if entry.isdigit() and int(entry) < len(gpus):
            shown.append(gpus[int(entry)])
        elif entry.startswith("MIG-"):
            owners = [gpu for gpu in gpus if entry in gpu.parts or (gpu.uuid and gpu.uuid in entry)]
            owner = (owners or gpus or [Gpu(name="MIG device", vendor="nvidia")])[0]
            shown.append(replace(owner, parts=(entry,)))
        elif entry.startswith("GPU-") and (named := [gpu for gpu in gpus if gpu.uuid.startswith(entry)]):
            shown.append(named[0])
        else:
            break
    return shown


# NVIDIA


def _nvidia_gpus(sys_root: Path, proc_root: Path) -> list[Gpu]:
    of_driver = driver_gpus(sys_root, proc_root)
    if proc_root != _PROC or not (of_driver or _has_device()):
        return of_driver
    listed = parse_listing(_ask_driver())
    by_uuid = {gpu.uuid: gpu for gpu in of_driver}
    by_order = of_driver if len(of_driver) == len(listed) else [None] * len(listed)
    return [
        replace(gpu, bus_id=known.bus_id, numa=known.numa) if (known := by_uuid.get(gpu.uuid, other)) else gpu
        for gpu, other in zip(listed, by_order, strict=True)
    ] or of_driver


def _has_device() -> bool:
    return any(Path(device).exists() for device in DEVICES_OF_NVIDIA)


def _ask_driver() -> str:
    if shutil.which("nvidia-smi") is None:
        return ""
    try:
        return subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_LIST_S, check=False
        ).stdout  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""


def parse_listing(listing: str) -> list[Gpu]:
    """What `nvidia-smi -L` prints: one line a GPU, and one below it for each of its MIG devices."""
    found: list[Gpu] = []
    for line in listing.splitlines():
        if match := _GPU_LINE.match(line):
            found.append(Gpu(name=match[1], vendor="nvidia", uuid=match[2]))
        elif found and (match := _MIG_LINE.match(line)):
            last = found[-1]
            found[-1] = Gpu(name=last.name, vendor="nvidia", uuid=last.uuid, parts=(*last.parts, match[1]))
    return found


def driver_gpus(sys_root: Path, proc_root: Path) -> list[Gpu]:
    """All that NVIDIA's driver has, hidden ones too."""
    found = []
    for path in sorted((proc_root / "driver/nvidia/gpus").glob("*/information")):
        text = read_text(path)
        uuid = field_of(text, "GPU UUID")
        found.append(
            Gpu(
                name=field_of(text, "Model"),
                vendor="nvidia",
                # of a GPU that nobody has opened yet, it says GPU-????????-…
                uuid="" if "?" in uuid else uuid,
                place=path.parent.name,
                bus_id=path.parent.name,
                numa=numa_of_device(sys_root, path.parent.name),
            )
        )
    return found


# AMD


def _amd_gpus(sys_root: Path) -> list[Gpu]:
    nodes = sorted((sys_root / "class/kfd/kfd/topology/nodes").glob("[0-9]*"), key=lambda path: int(path.name))
    found = []
    for node in nodes:
        if read_text(node / "gpu_id").strip() in ("", "0"):
            continue  # a processor, or a GPU that the control group hides
        properties = properties_of(node / "properties")
        unique_id = int(properties.get("unique_id", 0))
        bus_id = bus_id_of_node(properties)
        product = read_text(sys_root / "bus/pci/devices" / bus_id / "product_name").strip()
        found.append(
            Gpu(
                name=product or f"AMD {_architecture(int(properties.get('gfx_target_version', 0)))}",
                vendor="amd",
                # many models have none
                uuid=f"GPU-{unique_id:016x}" if unique_id else "",
                # not that on the bus, which the partitions of a GPU share
                place=f"kfd {node.name}",
                bus_id=bus_id,
                numa=numa_of_device(sys_root, bus_id),
            )
        )
    return found


def properties_of(path: Path) -> dict[str, str]:
    """Of a node or a link of AMD's topology: a name and a number a line."""
    return dict(line.split(None, 1) for line in read_text(path).splitlines() if " " in line)


def bus_id_of_node(properties: Mapping[str, str]) -> str:
    location, domain = int(properties.get("location_id", 0)), int(properties.get("domain", 0))
    return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"


def _architecture(version: int) -> str:
    """90010 is gfx90a: major, minor and stepping in two digits each, the last two written as hex."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


# both


def numa_of_device(sys_root: Path, bus_id: str) -> int | None:
    """None when the kernel says -1: not known, as in most virtual machines."""
    domain = read_int(sys_root / "bus/pci/devices" / bus_id.lower() / "numa_node")
    return domain if domain is not None and domain >= 0 else None
