"""What NVIDIA's driver says of the way between its GPUs, asked of its library: `python -m topout.host.nvml` prints it.

A process of its own, which is given up after a while: the library wakes every GPU, hangs on sick ones, and must not be
in a launcher that forks ranks. A question that this driver does not know, or that this GPU does not answer, is None.
Not for what a GPU does, which `record.gpu_counters` samples, nor for which GPUs there are (see `gpus`).
"""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_LIMIT_S = 15.0
_MOST_LINKS = 36
_TO_GPU = 0
_P2P_READ, _P2P_NVLINK = 0, 2
_UUID_BYTES = 96
_PCI_BYTES, _PCI_NUMBERS = 68, 16
"""nvmlPciInfo_t of version 3: a text, then domain, bus and device as numbers, two more and a text."""


@dataclass(frozen=True, kw_only=True)
class NvmlGpu:
    """One that this process may open."""

    uuid: str | None
    bus_id: str | None
    far_ends: list[str | None] | None
    """For each NVLink that is up the bus number of the GPU at its other end, None for a switch; None as a whole where
    the GPU knows no NVLink."""


@dataclass(frozen=True, kw_only=True)
class NvmlPair:
    """Two of them, by their places in the list."""

    first: int
    second: int
    ancestor: int | None
    """nvmlGpuTopologyLevel_t: how far up the bus they meet."""
    can_read: bool | None
    by_nvlink: bool | None


@dataclass(frozen=True, kw_only=True)
class NvmlView:
    """All of them, in the order of the bus."""

    gpus: list[NvmlGpu]
    pairs: list[NvmlPair]


def ask_nvml() -> NvmlView | None:
    """None without a driver that answers."""
    words = [sys.executable, "-P", "-m", "topout.host.nvml"]
    try:
        done = subprocess.run(words, capture_output=True, timeout=_LIMIT_S, check=True)
        said = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    if said is None:
        return None
    return NvmlView(
        gpus=[NvmlGpu(**gpu) for gpu in said["gpus"]], pairs=[NvmlPair(**pair) for pair in said["pairs"]]
    )  # fmt: skip


class _Library:
    """Calls whose answer comes back through a pointer."""

    def __init__(self) -> None:
        import ctypes

        self._c = ctypes
        self._library = ctypes.CDLL(_LIBRARY)

    def open(self) -> bool:
        return self._is_done("nvmlInit_v2")

    def number(self, name: str, *arguments: Any) -> int | None:
        answer = self._c.c_uint()
        return answer.value if self._is_done(name, *arguments, self._c.byref(answer)) else None

    def handle(self, index: int) -> Any:
        answer = self._c.c_void_p()
        is_done = self._is_done("nvmlDeviceGetHandleByIndex_v2", index, self._c.byref(answer))
        return answer if is_done else None

    def uuid(self, gpu: Any) -> str | None:
        room = self._c.create_string_buffer(_UUID_BYTES)
        return room.value.decode() if self._is_done("nvmlDeviceGetUUID", gpu, room, _UUID_BYTES) else None

    def bus_id(self, name: str, *arguments: Any) -> str | None:
        """As the kernel writes it."""
        room = self._c.create_string_buffer(_PCI_BYTES)
        if not self._is_done(name, *arguments, room):
            return None
        domain, bus, device = (self._c.c_uint * 3).from_buffer(room, _PCI_NUMBERS)
        return f"{domain:04x}:{bus:02x}:{device:02x}.0"

    def can(self, name: str, *arguments: Any) -> bool | None:
        """Of questions that are answered with 0 or with why not."""
        status = self.number(name, *arguments)
        return None if status is None else status == 0

    def _is_done(self, name: str, *arguments: Any) -> bool:
        function = getattr(self._library, name, None)
        return function is not None and function(*arguments) == 0


def look() -> NvmlView | None:
    try:
        library = _Library()
    except OSError:
        return None
    if not library.open():
        return None
    number = library.number("nvmlDeviceGetCount_v2") or 0
    # one that has fallen off the bus has no handle
    handles = [handle for index in range(number) if (handle := library.handle(index)) is not None]
    places = [library.bus_id("nvmlDeviceGetPciInfo_v3", gpu) for gpu in handles]
    return NvmlView(
        gpus=[
            NvmlGpu(uuid=library.uuid(gpu), bus_id=place, far_ends=_far_ends(library, gpu, places))
            for gpu, place in zip(handles, places, strict=True)
        ],
        pairs=[
            NvmlPair(
                first=first,
                second=second,
                ancestor=library.number("nvmlDeviceGetTopologyCommonAncestor", handles[first], handles[second]),
                can_read=library.can("nvmlDeviceGetP2PStatus", handles[first], handles[second], _P2P_READ),
                by_nvlink=library.can("nvmlDeviceGetP2PStatus", handles[first], handles[second], _P2P_NVLINK),
            )
            for first in range(len(handles))
            for second in range(first + 1, len(handles))
        ],
    )


def _far_ends(library: _Library, gpu: Any, places: list[str | None]) -> list[str | None] | None:
    states = [library.number("nvmlDeviceGetNvLinkState", gpu, link) for link in range(_MOST_LINKS)]
    if all(state is None for state in states):
        return None
    ends = []
    for link in [link for link, state in enumerate(states) if state]:
        kind = library.number("nvmlDeviceGetNvLinkRemoteDeviceType", gpu, link)
        place = library.bus_id("nvmlDeviceGetNvLinkRemotePciInfo_v2", gpu, link)
        # older drivers do not tell what kind of thing is there; a GPU may also be one that this process may not open
        ends.append(place if kind == _TO_GPU or place in places else None)
    return ends


if __name__ == "__main__":
    found = look()
    sys.stdout.write(json.dumps(None if found is None else asdict(found)))
