"""Numbers between ranks, and whether all have the same text.

Never pickles; whole values travel by `exchange.gather_in`. Not for anything that is sent more than a few times a run.
"""

import hashlib
import json
from typing import Any

import torch
import torch.distributed as dist

from topout.train.exchange import carrier, gather_in


def gather_numbers(numbers: list[int], group: Any) -> list[list[int]]:
    """Each rank's numbers, of which all have equally many."""
    mine = torch.tensor(numbers, dtype=torch.int64, device=carrier(group))
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, mine, group=group)
    return [[int(number) for number in row.tolist()] for row in rows]


def all_equal(text: str, group: Any) -> bool:
    """Whether all ranks have this text; 32 bytes a rank travel, however long it is."""
    digest = hashlib.sha256(text.encode()).digest()
    words = [int.from_bytes(digest[i : i + 8], "little", signed=True) for i in range(0, 32, 8)]
    return all(row == words for row in gather_numbers(words, group))


def first_difference(mine: list[str], what: str, group: Any) -> str | None:
    """Where the first rank that has other texts than rank 0 differs, in the same words on all; None where none does."""
    if all_equal(json.dumps(mine), group):
        return None
    lists: list[list[str]] = gather_in(mine, group)
    rank, other = next((rank, found) for rank, found in enumerate(lists) if found != lists[0])
    place = next(
        (place for place, (a, b) in enumerate(zip(lists[0], other, strict=False)) if a != b),
        min(len(lists[0]), len(other)),
    )
    first, second = (found[place] if place < len(found) else "none" for found in (lists[0], other))
    return f"{what} {place} is «{first}» on rank 0 and «{second}» on rank {rank}"
