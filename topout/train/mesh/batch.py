"""One global batch, as all ranks agree on it before they compute.

Peers must have been given the same samples, or their model would be no model; rows may have unequal numbers of samples,
which then count by their number. What is wrong on one rank ends all. It costs one small collective in host memory a
step, beside the device. Not for looking at samples: only their number, and a checksum of the first batch, travel.
"""

import zlib
from typing import Any

import torch
import torch.distributed as dist

from topout.schema.errors import TopoutError
from topout.train.agreement import raise_together
from topout.train.mesh.axes import row_of
from topout.train.mesh.spec import MeshSpec
from topout.train.place import Place


class BatchAgreement:
    def __init__(self, spec: MeshSpec, place: Place) -> None:
        self._spec, self._place = spec, place
        self._group = place.side_group()
        self._is_first = True

    def weight(self, inputs: tuple[torch.Tensor, ...], targets: Any) -> float:
        """What this row's mean loss counts in the mean over rows; 1 where all have equally many samples."""
        failure: Exception | None = None
        try:
            self._check(inputs, targets)
        except TopoutError as error:
            failure = error
        if self._place.world_size == 1:
            raise_together(failure, self._place)
            return 1.0
        mark = _checksum(inputs) if self._is_first and failure is None else 0
        self._is_first = False
        own = torch.tensor([-1 if failure else inputs[0].shape[0], mark])
        rows = [torch.empty_like(own) for _ in range(self._place.world_size)]
        dist.all_gather(rows, own, group=self._group)
        told = [(int(size), int(mark)) for size, mark in (row.tolist() for row in rows)]
        if min(size for size, _ in told) < 0:
            raise_together(failure, self._place)
        return self._weighed(told)

    def _weighed(self, told: list[tuple[int, int]]) -> float:
        by_row: dict[int, tuple[int, tuple[int, int]]] = {}
        for rank, one in enumerate(told):
            first, known = by_row.setdefault(row_of(self._spec, rank), (rank, one))
            if known != one:
                what = f"{one[0]} samples where rank {first} has {known[0]}" if one[0] != known[0] else "other samples"
                raise TopoutError(
                    f"Rank {rank} was given {what}{'' if one[0] != known[0] else f' than rank {first}'}.",
                    why="The two compute one model's output together (tp, pp), so they need the same batch.",
                    do="take batches from trainer.shard(loader), or choose samples by trainer.row, not by rank",
                )
        sizes = [one[0] for _, one in by_row.values()]
        own = told[self._place.rank][0]
        return 1.0 if len(set(sizes)) == 1 else own * len(sizes) / sum(sizes)

    def _check(self, inputs: tuple[Any, ...], targets: Any) -> None:
        kinds = [type(value).__name__ for value in (*inputs, targets) if not isinstance(value, torch.Tensor)]
        if kinds or not inputs:
            raise TopoutError(
                f"step() was given a {kinds[0] if kinds else 'batch without inputs'}.",
                why="Inputs are a tensor or a tuple of tensors, the model's arguments; targets are one tensor.",
                do="step(inputs, targets)",
            )
        sizes = {value.shape[0] if value.dim() else 0 for value in (*inputs, targets)}
        if len(sizes) > 1 or 0 in sizes:
            raise TopoutError(
                f"Inputs and targets have {' and '.join(map(str, sorted(sizes)))} samples.",
                why="Their first dimension is the batch, by which they are divided.",
                do="give inputs and targets as many samples, one at least",
            )
        check_divides(next(iter(sizes)), self._spec)


def check_divides(size: int, spec: MeshSpec) -> None:
    count = spec.num_microbatches
    if size % count:
        fitting = [number for number in range(count, 0, -1) if size % number == 0]
        raise TopoutError(
            f"A batch of {size} samples does not divide into {count} microbatches.",
            why="Stages exchange tensors of one size, so every microbatch has equally many samples.",
            do=f"a batch of {max(1, size // count) * count}, drop_last=True for the end of an epoch, or "
            f"microbatches = {fitting[0]} in {spec.name}",
        )


def _checksum(inputs: tuple[torch.Tensor, ...]) -> int:
    value = 0
    for tensor in inputs:
        value = zlib.crc32(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy(), value)
    return value
