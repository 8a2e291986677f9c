"""Records the files that topology and nics read on this machine: `python record.py > name.json`.

Names of devices that could be traced (addresses, identifiers) are left out or numbered anew. Standard library alone, so
that it runs on any node.
"""

import itertools
import json
import re
import sys
from pathlib import Path

FILES = (
    "sys/devices/system/cpu/online",
    "sys/devices/system/cpu/cpu[0-9]*/topology/*_id",
    "sys/devices/system/cpu/cpu[0-9]*/topology/core_cpus_list",
    "sys/devices/system/cpu/cpu[0-9]*/topology/thread_siblings_list",
    "sys/devices/system/node/node[0-9]*/cpulist",
    "sys/devices/system/node/node[0-9]*/distance",
    "sys/class/net/*/flags",
    "sys/class/net/*/carrier",
    "sys/class/net/*/speed",
    "sys/class/net/*/dev_port",
    "sys/class/net/*/device/numa_node",
    "sys/class/infiniband/*/ports/*/rate",
    "sys/class/infiniband/*/ports/*/state",
    "sys/class/infiniband/*/ports/*/link_layer",
    "sys/class/infiniband/*/device/numa_node",
    "sys/class/kfd/kfd/topology/nodes/*/gpu_id",
    "sys/class/kfd/kfd/topology/nodes/*/name",
    "sys/class/kfd/kfd/topology/nodes/*/properties",
    "sys/class/kfd/kfd/topology/nodes/*/io_links/*/properties",
    "sys/class/kfd/kfd/topology/nodes/*/p2p_links/*/properties",
    "sys/fs/cgroup/cpu.max",
    "sys/fs/cgroup/memory.max",
    "sys/fs/cgroup/*/cpu.cfs_*_us",
    "sys/fs/cgroup/*/memory.limit_in_bytes",
    "proc/driver/nvidia/version",
    "proc/driver/nvidia/gpus/*/information",
    "proc/self/cgroup",
    "proc/net/route",
)
FOLDERS = ("sys/class/net/*/device", "sys/class/net/*/lower_*", "sys/class/net/*/bridge")
LINES = {
    "proc/self/status": r"Cpus_allowed_list|Mems_allowed_list",
    "proc/meminfo": r"MemTotal",
    "proc/cpuinfo": r"processor|model name|cpu\s*:|CPU implementer|CPU part",
}
DISPLAY, NETWORK = "0x03", "0x02"


def record(root: Path = Path("/")) -> dict[str, str]:
    found = {}
    for path in itertools.chain.from_iterable(root.glob(pattern) for pattern in FILES):
        found[str(path.relative_to(root))] = read(path)
    for path in itertools.chain.from_iterable(root.glob(pattern) for pattern in FOLDERS):
        found[f"{path.relative_to(root)}/"] = ""
    for name, wanted in LINES.items():
        lines = read(root / name).splitlines()
        kept = itertools.takewhile(lambda line: line, lines) if name == "proc/cpuinfo" else lines
        found[name] = "".join(f"{line}\n" for line in kept if re.match(wanted, line))
    for device in root.glob("sys/bus/pci/devices/*"):
        if read(device / "class").startswith((DISPLAY, NETWORK)):
            for name in ("class", "vendor", "device", "numa_node"):
                found[str(device.relative_to(root) / name)] = read(device / name)
            for interface in device.glob("net/*"):
                found[f"{interface.relative_to(root)}/"] = ""
            if (device / "product_name").exists():
                found[str(device.relative_to(root) / "product_name")] = read(device / "product_name")
    for device in root.glob("sys/class/infiniband/*"):
        for interface in device.glob("device/net/*"):
            found[f"{interface.relative_to(root)}/"] = ""
    return {path: text for path, text in found.items() if text or path.endswith("/")}


def read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def without_identity(text: str) -> str:
    numbers = itertools.count()
    text = re.sub(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", lambda _: f"GPU-{next(numbers):08x}", text)
    return re.sub(r"unique_id \d+", "unique_id 0", text)


if __name__ == "__main__":
    tree = {path: without_identity(text) for path, text in record().items()}
    json.dump({"about": "Recorded on ...", "files": tree}, sys.stdout, indent=1, sort_keys=True)
    print()
