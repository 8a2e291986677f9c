"""Gradients as products of two thin matrices (PowerSGD): for rank r, r * (n + m) values instead of n * m.

    M = gradient + residual           a matrix of each parameter with two or more dimensions
    P = average of M Q, made orthonormal
    Q = average of M' P               kept: one power iteration a step follows the gradient's main directions
    gradient = P Q',  residual = M - P Q'

All P of a bucket travel in one all-reduce, together with the parameters that are not compressed (biases, norms, and
matrices that are no larger than their factors); all Q in another. The first `start` steps are plain averages: early
gradients change direction too fast to be followed.

Not for models whose gradients have no few main directions, nor for ranks with processors of different makes: each
makes P orthonormal for itself, and replicas would drift where bits differ. Reference: Vogels, Karimireddy, Jaggi 2019.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from topout.schema.errors import TopoutError
from topout.train.compression.bucket import Bucket
from topout.train.compression.compressor import LaneCompressor
from topout.train.place import Place


class Matrix:
    """One parameter's part of an exchange: views of the bucket's factors, and what it remembers."""

    def __init__(self, name: str, gradient: Tensor, rank: int) -> None:
        self.name = name
        self.num_rows, self.num_columns = matrix_shape(gradient)
        self.rank = min(rank, self.num_rows, self.num_columns)
        self.p = self.q = torch.empty(0)

    @property
    def p_size(self) -> int:
        return self.num_rows * self.rank

    @property
    def q_size(self) -> int:
        return self.num_columns * self.rank


class Plan:
    """Which gradients of a bucket are compressed, and the memory for what travels; kept until the bucket changes."""

    def __init__(self, bucket: Bucket, rank: int) -> None:
        self.names = bucket.names
        self.device = bucket.buffer.device
        self.matrices: dict[int, Matrix] = {}
        for number, (name, gradient) in enumerate(zip(bucket.names, bucket.gradients, strict=True)):
            if is_worth_it(gradient, rank):
                self.matrices[number] = Matrix(name, gradient, rank)
        self.rest = [number for number in range(len(bucket.names)) if number not in self.matrices]
        rest_sizes = [bucket.gradients[number].numel() for number in self.rest]
        sizes = [matrix.p_size for matrix in self.matrices.values()]
        q_sizes = [matrix.q_size for matrix in self.matrices.values()]
        # as what is kept and saved, whatever torch's default is
        self.first = torch.empty(sum(rest_sizes) + sum(sizes), dtype=torch.float32, device=self.device)
        self.second = torch.empty(sum(q_sizes), dtype=torch.float32, device=self.device)
        parts = list(self.first.split([*rest_sizes, *sizes]))
        self.rest_parts = [
            part.view(bucket.gradients[number].shape) for number, part in zip(self.rest, parts, strict=False)
        ]
        q_parts = self.second.split(q_sizes)
        for matrix, p, q in zip(self.matrices.values(), parts[len(self.rest) :], q_parts, strict=True):
            matrix.p = p.view(matrix.num_rows, matrix.rank)
            matrix.q = q.view(matrix.num_columns, matrix.rank)

    def fits(self, bucket: Bucket) -> bool:
        return self.names == bucket.names and self.device == bucket.buffer.device


class PowerSgd(LaneCompressor):
    def __init__(self, place: Place, *, rank: int = 4, start: int = 10, seed: int = 0) -> None:
        if rank < 1 or start < 0:
            raise TopoutError(
                f"PowerSGD of rank {rank} after {start} steps is not possible.",
                why="Its matrices have at least one column, and steps count from 0.",
                do="pass rank=4, start=10, or others that are not negative",
            )
        super().__init__(place)
        self._rank, self._start, self._seed = rank, start, seed
        self._plans: dict[int, Plan] = {}
        self._directions: dict[str, Tensor] = {}
        """Q of each matrix, the same on all ranks."""
        self._residuals: dict[str, Tensor] = {}

    def exchange(self, bucket: Bucket, step: int) -> None:
        if step < self._start or not bucket.buffer.is_floating_point():
            self.average(bucket.buffer)
            return
        plan = self._plan(bucket)
        self._send_first(bucket, plan)
        is_finite = torch.stack([matrix.p.isfinite().all() for matrix in plan.matrices.values()] or [torch.ones(())])
        # the same on all ranks: it is asked of the averages
        broken = {number for number, fine in zip(plan.matrices, is_finite.tolist(), strict=False) if not fine}
        self._send_second(plan, broken)
        for number, matrix in plan.matrices.items():
            gradient, residual = bucket.gradients[number], self._residuals[matrix.name]
            if number in broken:
                gradient.fill_(torch.nan)
                continue
            approximation = matrix.p @ matrix.q.t()
            residual.sub_(approximation)
            gradient.copy_(approximation.view(gradient.shape))
            # a gradient of zeros has no direction; the last one is a better start than none
            self._directions[matrix.name].copy_(torch.where(matrix.q.any(), matrix.q, self._directions[matrix.name]))

    def _plan(self, bucket: Bucket) -> Plan:
        plan = self._plans.get(bucket.index)
        if plan is None or not plan.fits(bucket):
            plan = self._plans[bucket.index] = Plan(bucket, self._rank)
        if bucket.is_last:
            self._plans = {index: kept for index, kept in self._plans.items() if index <= bucket.index}
        return plan

    def _send_first(self, bucket: Bucket, plan: Plan) -> None:
        """The average of all P and of what is not compressed."""
        for part, number in zip(plan.rest_parts, plan.rest, strict=True):
            part.copy_(bucket.gradients[number])
        for number, matrix in plan.matrices.items():
            values = self._residual(matrix, plan.device)
            values.add_(bucket.gradients[number].reshape(matrix.num_rows, matrix.num_columns))
            torch.mm(values, orthonormal(self._direction(matrix, plan.device)), out=matrix.p)
        self.average(plan.first)
        for part, number in zip(plan.rest_parts, plan.rest, strict=True):
            bucket.gradients[number].copy_(part)

    def _send_second(self, plan: Plan, broken: set[int]) -> None:
        """The average of all Q."""
        if not plan.matrices:
            return
        for number, matrix in plan.matrices.items():
            values = self._residuals[matrix.name]
            if number in broken:
                values.zero_()
                matrix.p.zero_()
            matrix.p.copy_(orthonormal(matrix.p))
            torch.mm(values.t(), matrix.p, out=matrix.q)
        self.average(plan.second)

    def _residual(self, matrix: Matrix, device: torch.device) -> Tensor:
        kept = self._residuals.get(matrix.name)
        if kept is None or kept.shape != (matrix.num_rows, matrix.num_columns):
            kept = torch.zeros((matrix.num_rows, matrix.num_columns), dtype=torch.float32, device="cpu")
        self._residuals[matrix.name] = kept.to(device)
        return self._residuals[matrix.name]

    def _direction(self, matrix: Matrix, device: torch.device) -> Tensor:
        kept = self._directions.get(matrix.name)
        if kept is None or kept.shape != (matrix.num_columns, matrix.rank):
            generator = torch.Generator().manual_seed(self._seed + self.parameters.number(matrix.name))
            size = (matrix.num_columns, matrix.rank)
            kept = torch.randn(size, generator=generator, dtype=torch.float32, device="cpu")
        self._directions[matrix.name] = kept.to(device)
        return self._directions[matrix.name]

    def memory(self) -> dict[str, Any]:
        return {
            **super().memory(),
            "directions": {name: q.clone() for name, q in self._directions.items()},
            "residuals": {name: values.clone() for name, values in self._residuals.items()},
        }

    def recall(self, memory: dict[str, Any], *, is_same_world: bool) -> None:
        """In another world residuals are dropped; directions are the same on all ranks and stay."""
        super().recall(memory, is_same_world=is_same_world)
        residuals = memory["residuals"] if is_same_world else {}
        self._directions = loaded(memory["directions"])
        self._residuals = loaded(residuals)


def loaded(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # on the host: memory of a GPU would belong to this stream, and the lane, which reads it, to another
    return {name: tensor.to("cpu", torch.float32, copy=True) for name, tensor in tensors.items()}


def matrix_shape(gradient: Tensor) -> tuple[int, int]:
    return gradient.size(0), gradient.numel() // gradient.size(0)


def is_worth_it(gradient: Tensor, rank: int) -> bool:
    if gradient.dim() < 2 or gradient.numel() == 0:
        return False
    num_rows, num_columns = matrix_shape(gradient)
    return min(rank, num_rows, num_columns) * (num_rows + num_columns) < num_rows * num_columns


def orthonormal(columns: Tensor) -> Tensor:
    return torch.linalg.qr(columns)[0]
