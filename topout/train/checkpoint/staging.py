"""Memory that a step's state is copied to, allocated once and used for every checkpoint.

On a GPU the copies into pinned memory stand in the stream that training runs on: the host goes on at once, and whatever
the device does next comes after them. Copies beside the next forward would cost less, but nothing tells of every write
to a parameter (averaged weights swapped in, weights clamped, a graph replayed). On a CPU it is a plain copy.
"""

import mmap
from typing import Any

import torch

from topout.train.checkpoint.captured import Captured, local_part
from topout.train.checkpoint.plan import PAGE_BYTES, Layout


class Staging:
    """One image of a rank's file; `fill` only after the last one has been written."""

    def __init__(self, device: torch.device) -> None:
        self._is_pinned = device.type == "cuda"
        self._image = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._layout: Layout | None = None
        self._rooms: list[tuple[str, torch.Tensor]] = []
        self._copied: list[Any] = []

    def fill(self, layout: Layout, captured: Captured) -> None:
        self._allocate(layout)
        devices = set()
        with torch.no_grad():
            for name, room in self._rooms:
                source = local_part(captured.tensors[name])
                room.copy_(source, non_blocking=source.is_cuda)
                if source.is_cuda:
                    devices.add(source.device)
        # a model may lie on several devices, each with a stream of its own
        self._copied = [torch.cuda.current_stream(device).record_event() for device in devices]

    def image(self) -> memoryview:
        """The bytes, once the copies have arrived; for the thread that writes them."""
        for copied in self._copied:
            copied.synchronize()
        return memoryview(self._image.numpy())

    def close(self) -> None:
        self._rooms, self._layout, self._copied = [], None, []
        self._image = torch.empty(0, dtype=torch.uint8, device="cpu")

    def _allocate(self, layout: Layout) -> None:
        if layout is self._layout:
            return
        self._image = _zeros(layout.num_bytes, is_pinned=self._is_pinned)
        self._rooms = [
            (piece.name, self._image[piece.at : piece.at + piece.num_bytes].view(piece.dtype).view(piece.sizes))
            for piece in layout.pieces
        ]
        self._layout = layout


def _zeros(num_bytes: int, *, is_pinned: bool) -> torch.Tensor:
    """Begins at a page, which writing past the page cache needs; zeros between tensors, so that files repeat."""
    if num_bytes == 0:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    if is_pinned:
        return torch.zeros(num_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)
    return torch.frombuffer(mmap.mmap(-1, -(-num_bytes // PAGE_BYTES) * PAGE_BYTES), dtype=torch.uint8)[:num_bytes]
