"""Memory that a step's state is copied to, allocated once and used for every checkpoint.

On a GPU the copies run on a stream of their own into pinned memory. What only an optimizer changes (parameters and its
own state) may still be read while the next forward and backward run: the optimizer's next step waits for it, on the
device. Everything else is waited for at once, and so is all of it where an optimizer is stepped in parts, whose first
comes during backward. On a CPU it is a plain copy.
"""

import mmap
from typing import Any

import torch

from topout.train.checkpoint.captured import Captured, local_part
from topout.train.checkpoint.plan import PAGE_BYTES, Layout
from topout.train.partial_step import is_stepped_in_parts


class Staging:
    """One image of a rank's file; `fill` only after the last one has been written."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._image = torch.empty(0, dtype=torch.uint8)
        self._layout: Layout | None = None
        self._rooms: list[tuple[str, torch.Tensor]] = []
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._copied: Any = None
        self._is_awaited = False
        self._hooks: list[Any] = []
        self._may_linger = True

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Lets its steps wait for copies in flight; without any optimizer nothing is left in flight."""
        if self._stream is not None:
            self._hooks.append(optimizer.register_step_pre_hook(self._before_step))
            self._may_linger &= not is_stepped_in_parts(optimizer)

    def fill(self, layout: Layout, captured: Captured) -> None:
        self._allocate(layout)
        with torch.no_grad():
            if self._stream is None:
                for name, room in self._rooms:
                    room.copy_(local_part(captured.tensors[name]))
            else:
                self._start_copies(captured)

    def image(self) -> memoryview:
        """The bytes, once the copies have arrived; for the thread that writes them."""
        if self._copied is not None:
            self._copied.synchronize()
        return memoryview(self._image.numpy())

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._rooms, self._layout = [], [], None
        self._image = torch.empty(0, dtype=torch.uint8)

    def _allocate(self, layout: Layout) -> None:
        if layout is self._layout:
            return
        self._image = _zeros(layout.num_bytes, is_pinned=self._stream is not None)
        self._rooms = [
            (piece.name, self._image[piece.at : piece.at + piece.num_bytes].view(piece.dtype).view(piece.sizes))
            for piece in layout.pieces
        ]
        self._layout = layout

    def _start_copies(self, captured: Captured) -> None:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        later = captured.until_step if self._hooks and self._may_linger else set()
        with torch.cuda.stream(self._stream):
            for name, room in self._rooms:
                if name not in later:
                    self._copy(room, captured.tensors[name])
            current.wait_event(self._stream.record_event())
            for name, room in self._rooms:
                if name in later:
                    self._copy(room, captured.tensors[name])
            self._copied = self._stream.record_event()
        self._is_awaited = bool(later)

    def _copy(self, room: torch.Tensor, tensor: torch.Tensor) -> None:
        source = local_part(tensor)
        room.copy_(source, non_blocking=True)
        if source.is_cuda:
            # should it be freed meanwhile, its memory must not be given away before it was read
            source.record_stream(self._stream)

    def _before_step(self, *_: object) -> None:
        if self._is_awaited:
            torch.cuda.current_stream(self._device).wait_event(self._copied)
            self._is_awaited = False


def _zeros(num_bytes: int, *, is_pinned: bool) -> torch.Tensor:
    """Begins at a page, which writing past the page cache needs; zeros between tensors, so that files repeat."""
    if num_bytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    if is_pinned:
        return torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=True)
    return torch.frombuffer(mmap.mmap(-1, -(-num_bytes // PAGE_BYTES) * PAGE_BYTES), dtype=torch.uint8)[:num_bytes]
