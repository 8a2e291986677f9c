"""Gradients as 8-bit integers with one scale for each chunk of values, and error feedback: a quarter of the bytes.

    all_to_all    each rank sends shard r of its gradients, rounded, to rank r
    locally       rank r adds them up in float32, averages, and rounds once more
    all_gather    each rank gets all shards

Sums never travel in 8 bits, so nothing overflows at any number of ranks. What the first rounding holds back goes into
the next step's gradient, and so does what the second held back, on the rank that did it, times the number of ranks: the
average then gets it once. One residual for each parameter therefore is the whole state. A chunk with a NaN or an
infinity comes out without a finite value on all ranks, and leaves no residual.

Not for a fast link: rounding costs several passes over the gradients. References: Dettmers 2016, 8-Bit Approximations;
Tang et al. 2019, DoubleSqueeze.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from topout.schema.errors import TopoutError
from topout.train.compression.bucket import Bucket
from topout.train.compression.compressor import LaneCompressor
from topout.train.compression.lane import gather_single
from topout.train.compression.residuals import Residuals
from topout.train.place import Place

LARGEST = 127
TINIEST = torch.finfo(torch.float32).tiny
CHUNKS_AT_A_TIME = 64
"""On CPU: 64 chunks of 1024 values stay in the cache from one pass over them to the next."""


class Rows:
    """What travels: for each shard its codes, then its chunks' scales, as bytes of one tensor."""

    def __init__(self, num_rows: int, num_chunks: int, chunk: int, device: torch.device) -> None:
        width = num_chunks * chunk
        self.wire = torch.empty((num_rows, width + 4 * num_chunks), dtype=torch.uint8, device=device)
        self.codes = self.wire[:, :width].view(torch.int8).unflatten(1, (num_chunks, chunk))
        self.scales = self.wire[:, width:].view(torch.float32).unsqueeze(2)


class Room:
    """Memory to work in for one bucket, kept from step to step."""

    def __init__(self, num_ranks: int, num_chunks: int, chunk: int, device: torch.device) -> None:
        self.sent = Rows(num_ranks, num_chunks, chunk, device)
        self.received = Rows(num_ranks, num_chunks, chunk, device)
        self.own = Rows(1, num_chunks, chunk, device)
        self.average = torch.empty((1, num_chunks, chunk), dtype=torch.float32, device=device)
        self.num_at_a_time = num_chunks if device.type == "cuda" else min(num_chunks, CHUNKS_AT_A_TIME)
        self.scratch = torch.empty((self.num_at_a_time, chunk), dtype=torch.float32, device=device)

    def blocks(self) -> Iterator[slice]:
        num_chunks = self.average.size(1)
        for begin in range(0, num_chunks, self.num_at_a_time):
            yield slice(begin, min(begin + self.num_at_a_time, num_chunks))


class Int8(LaneCompressor):
    def __init__(self, place: Place, *, chunk: int = 1024) -> None:
        if chunk < 4 or chunk % 4:
            raise TopoutError(
                f"A chunk of {chunk} values is not possible.",
                why="Scales of four bytes follow the codes and must lie at a multiple of four.",
                do="pass chunk=1024, or another multiple of 4",
            )
        super().__init__(place)
        self._chunk = chunk
        self._residuals = Residuals()
        self._rooms: dict[int, Room] = {}

    def exchange(self, bucket: Bucket, step: int) -> None:
        buffer, num_ranks = bucket.buffer, self.place.world_size
        num_chunks = -(-buffer.numel() // (self._chunk * num_ranks))
        if not buffer.is_floating_point() or num_ranks * num_chunks * (self._chunk + 4) >= buffer.nbytes:
            self.average(buffer)
            return
        room = self._room(bucket, num_chunks)
        values = self._residuals.flat(bucket, num_ranks * num_chunks * self._chunk)
        values[: buffer.numel()].add_(buffer)
        values = values.view(num_ranks, num_chunks, self._chunk)
        round_off(values, room.sent, room)
        dist.all_to_all_single(room.received.wire, room.sent.wire, group=self.lane.group)
        add_up(room.received, room)
        room.average.div_(num_ranks)
        round_off(room.average, room.own, room)
        values[self.place.rank].add_(room.average[0], alpha=num_ranks)
        gather_single(room.received.wire, room.own.wire, group=self.lane.group)
        restore(room.received, buffer, room)
        self.traffic.add(sent=2 * (num_ranks - 1) * room.own.wire.nbytes)

    def _room(self, bucket: Bucket, num_chunks: int) -> Room:
        room = self._rooms.get(bucket.index)
        if room is None or room.average.size(1) != num_chunks or room.average.device != bucket.buffer.device:
            room = Room(self.place.world_size, num_chunks, self._chunk, bucket.buffer.device)
            self._rooms[bucket.index] = room
        if bucket.is_last:
            self._rooms = {index: kept for index, kept in self._rooms.items() if index <= bucket.index}
        return room

    def memory(self) -> dict[str, Any]:
        return {**super().memory(), "residuals": self._residuals.state_dict()}

    def recall(self, memory: dict[str, Any], *, is_same_world: bool) -> None:
        """In another world residuals are dropped: what one step's rounding held back is lost."""
        super().recall(memory, is_same_world=is_same_world)
        self._residuals.load_state_dict(memory["residuals"] if is_same_world else {})


def round_off(values: Tensor, rows: Rows, room: Room) -> None:
    """Rounds values to codes and scales; what rounding held back stays in `values`."""
    for row in range(values.size(0)):
        for block in room.blocks():
            part = values[row, block]
            scratch, scale = room.scratch[: part.size(0)], rows.scales[row, block]
            torch.abs(part, out=scratch)
            torch.amax(scratch, 1, keepdim=True, out=scale)
            scale.div_(LARGEST).clamp_min_(TINIEST)
            torch.div(part, scale, out=scratch)
            scratch.round_()
            rows.codes[row, block].copy_(scratch)
            part.sub_(scratch.mul_(scale))
            is_broken = scale.isfinite().logical_not_()
            # asking a GPU would stop this thread until the GPU has got here
            if part.is_cuda or bool(is_broken.any()):
                part.masked_fill_(is_broken, 0)


def add_up(rows: Rows, room: Room) -> None:
    """The sum of all rows into the room's average, in the order of ranks."""
    for block in room.blocks():
        total = room.average[0, block].zero_()
        scratch = room.scratch[: total.size(0)]
        for row in range(rows.codes.size(0)):
            scratch.copy_(rows.codes[row, block])
            total.addcmul_(scratch, rows.scales[row, block])


def restore(rows: Rows, buffer: Tensor, room: Room) -> None:
    chunk = rows.codes.size(2)
    begin = 0
    for row in range(rows.codes.size(0)):
        for block in room.blocks():
            scratch = room.scratch[: rows.codes[row, block].size(0)]
            scratch.copy_(rows.codes[row, block]).mul_(rows.scales[row, block])
            end = min(begin + scratch.size(0) * chunk, buffer.numel())
            if begin < end:
                buffer[begin:end].copy_(scratch.view(-1)[: end - begin])
            begin = end
