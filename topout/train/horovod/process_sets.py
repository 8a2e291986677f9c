"""Subsets of the ranks, each with groups of its own for collectives and for gradients.

All ranks make a set together, members or not, as with Horovod.
"""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from topout.train.horovod import world


class ProcessSet:
    """Some ranks; usable once it has a number, which `init` and `add_process_set` give it."""

    process_set_id: int | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Sequence[int]) -> None:
        if isinstance(ranks_or_comm, str) or not isinstance(ranks_or_comm, Sequence | range | set):
            raise ValueError("ProcessSet should be initialized with a list of process ranks")
        if any(not isinstance(number, int) for number in ranks_or_comm):
            raise ValueError("ProcessSet should be initialized with a list of process ranks")
        self.ranks = sorted(ranks_or_comm)
        self.group: Any = None
        self.gradient_group: Any = None

    def size(self) -> int | None:
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> int | None:
        """Within the set."""
        return self.ranks.index(world.rank()) if self.process_set_id is not None and self.included() else None

    def included(self) -> bool:
        return world.rank() in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"


global_process_set = ProcessSet([])
global_process_set.process_set_id = 0
_sets: dict[int, ProcessSet] = {}


def start_process_sets(asked: Sequence[ProcessSet]) -> None:
    global_process_set.ranks = list(range(world.size()))
    global_process_set.group = dist.group.WORLD
    global_process_set.gradient_group = world.current().gradient_group
    _sets.clear()
    _sets[0] = global_process_set
    for process_set in asked:
        add_process_set(process_set)


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if any(known.ranks == process_set.ranks for known in _sets.values()):
        raise ValueError(f"Attempted to add a duplicate process set: {process_set}")
    if process_set.ranks and process_set.ranks[-1] >= world.size():
        raise ValueError(f"{process_set} names a rank that this job of {world.size()} has not.")
    process_set.group = dist.new_group(process_set.ranks)
    process_set.gradient_group = dist.new_group(process_set.ranks)
    process_set.process_set_id = max(_sets) + 1
    _sets[process_set.process_set_id] = process_set
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    number = process_set.process_set_id
    if number is None or number == 0 or _sets.pop(number, None) is None:
        return False
    process_set.process_set_id = None
    if process_set.included():
        dist.destroy_process_group(process_set.group)
        dist.destroy_process_group(process_set.gradient_group)
    return True


def group_of(process_set: ProcessSet) -> Any:
    """The set's group, for a member."""
    world.current()
    if process_set.process_set_id is None:
        raise ValueError(f"{process_set} has not been added; use hvd.add_process_set().")
    if not process_set.included():
        raise ValueError(f"rank {world.rank()} is not in {process_set}.")
    return process_set.group
