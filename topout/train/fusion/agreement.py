"""Numbers between ranks, and whether all have the same text.

Never pickles; whole values travel by `exchange.gather_in`. Not for anything that is sent more than a few times a run.
"""

import hashlib
from typing import Any

import torch
import torch.distributed as dist

from topout.train.exchange import carrier


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
