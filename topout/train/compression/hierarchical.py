"""Averages host by host: a sum within each host, an all-reduce among one rank of each, a broadcast within each.

Between hosts each gradient then travels once for a host, not once for a rank. Any number of ranks on each host will do.
Not for NCCL, which does the same inside, nor for hosts of one rank: there it is the plain all-reduce on a thread.
"""

import socket
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from topout.schema.errors import ExitCode, TopoutError
from topout.train.compression.bucket import Bucket
from topout.train.compression.compressor import LaneCompressor
from topout.train.compression.traffic import all_reduce_bytes
from topout.train.exchange import gather
from topout.train.place import Place


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """Ranks by host, each host's in order; hosts in the order of their first ranks."""

    hosts: tuple[tuple[int, ...], ...]

    @property
    def leaders(self) -> tuple[int, ...]:
        return tuple(ranks[0] for ranks in self.hosts)

    def of(self, rank: int) -> tuple[int, ...]:
        return next(ranks for ranks in self.hosts if rank in ranks)


class Hierarchical(LaneCompressor):
    def __init__(self, place: Place, *, host: str | None = None) -> None:
        """`host` names this rank's host where its own name would not do: containers may all be called the same."""
        super().__init__(place)
        self._mine: tuple[int, ...] = (place.rank,)
        self._local: Any = None
        self._between: Any = None
        if place.world_size == 1:
            return
        neighbours = meet(place, host or socket.gethostname())
        # every rank makes every group, whether it is in it or not: torch asks for that
        for ranks in neighbours.hosts:
            group = dist.new_group(list(ranks))
            if place.rank in ranks:
                self._mine, self._local = ranks, group
        self._between = dist.new_group(list(neighbours.leaders))
        self._num_hosts = len(neighbours.hosts)
        self.lane.other_groups = [self._local, *([self._between] if self._mine[0] == place.rank else [])]

    def exchange(self, bucket: Bucket, step: int) -> None:
        buffer, leader = bucket.buffer, self._mine[0]
        buffer.div_(self.place.world_size)
        is_leader = self.place.rank == leader
        if len(self._mine) > 1:
            dist.reduce(buffer, dst=leader, group=self._local)
        if is_leader and self._num_hosts > 1:
            dist.all_reduce(buffer, group=self._between)
            self.traffic.add(sent=all_reduce_bytes(buffer.nbytes, self._num_hosts))
        if len(self._mine) > 1:
            dist.broadcast(buffer, src=leader, group=self._local)


def meet(place: Place, host: str) -> Neighbours:
    """Who is on which host; raises on all ranks alike where names and launcher disagree."""
    told = gather([host, place.local_world_size], place)
    names = [str(name) for name, _ in told]
    for rank, (name, said) in enumerate(told):
        num_here = names.count(name)
        if said > 1 and num_here != said:
            raise TopoutError(
                f"Rank {rank} has {said} ranks on its host, and {num_here} call theirs {name!r}.",
                why="Sums host by host need to know who shares a host; hosts may bear the same name in containers.",
                do="Hierarchical(place, host=...) with a name of each host's own",
                exit_code=ExitCode.ENVIRONMENT,
            )
    by_host: dict[str, list[int]] = {}
    for rank, name in enumerate(names):
        by_host.setdefault(name, []).append(rank)
    return Neighbours(hosts=tuple(tuple(ranks) for ranks in by_host.values()))
