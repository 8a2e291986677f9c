"""What all ranks must know alike: values as JSON, and errors, so that no rank waits for one that has given up.

Not for tensors, and not for every step: a value costs two small collectives.
"""

from typing import Any

import torch
import torch.distributed as dist

from topout.schema.errors import ExitCode, TopoutError
from topout.train.exchange import gather_in
from topout.train.place import Place


class Agreement:
    """The ranks of `place` on a group of their own; whoever uses it does so on all ranks, one thread at a time."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._group = place.side_group()

    def shared(self, value: Any) -> list[Any]:
        """What each rank gave, by rank. JSON, since a pickle from the network could run code."""
        if self.place.world_size == 1:
            return [value]
        return gather_in(value, self._group)

    def first(self, value: Any) -> Any:
        """What rank 0 gave."""
        return self.shared(value if self.place.is_first else None)[0]

    def most(self, *values: float) -> list[float]:
        """The largest of each value over the ranks; one collective."""
        if self.place.world_size == 1:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.float64, device="cpu")
        dist.all_reduce(numbers, op=dist.ReduceOp.MAX, group=self._group)
        return [float(number) for number in numbers]

    def raise_if_any(self, error: TopoutError | None) -> None:
        """Ends all ranks with the error of the lowest rank that has one."""
        given = self.shared(None if error is None else as_values(error))
        for rank, values in enumerate(given):
            if values is None:
                continue
            if rank == self.place.rank and error is not None:
                raise error
            problem, why, do, exit_code = values
            raise TopoutError(problem, why=f"{why} (rank {rank})", do=do, exit_code=ExitCode(exit_code))


def as_values(error: TopoutError) -> list[Any]:
    return [error.problem, error.why, error.do, int(error.exit_code)]
