"""Short texts between ranks: what a plan is made of, and whether all ranks have the same.

Texts and numbers, never pickles. Not for anything that is sent more than a few times a run.
"""

import hashlib
from typing import Any

import torch
import torch.distributed as dist


def message_device(group: Any) -> torch.device:
    """Where small tensors of our own must lie for this group's backend."""
    config = str(dist.get_backend_config(group))
    if "nccl" in config and "gloo" not in config and "mpi" not in config:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def gather_numbers(numbers: list[int], group: Any) -> list[list[int]]:
    """Each rank's numbers, of which all have equally many."""
    mine = torch.tensor(numbers, dtype=torch.int64, device=message_device(group))
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, mine, group=group)
    return [[int(number) for number in row.tolist()] for row in rows]


def gather_texts(text: str, group: Any) -> list[str]:
    """Each rank's text, in the order of ranks."""
    raw = text.encode()
    lengths = [row[0] for row in gather_numbers([len(raw)], group)]
    padded = raw + bytes(max(lengths) - len(raw))
    device = message_device(group)
    mine = torch.frombuffer(bytearray(padded or b"\0"), dtype=torch.uint8).to(device)
    rows = [torch.empty_like(mine) for _ in lengths]
    dist.all_gather(rows, mine, group=group)
    return [bytes(row.cpu().tolist())[:length].decode() for row, length in zip(rows, lengths, strict=True)]


def broadcast_text(text: str, group: Any) -> str:
    """The text of the group's first rank."""
    root = dist.get_global_rank(group, 0) if group is not dist.group.WORLD else 0
    device = message_device(group)
    raw = text.encode()
    length = torch.tensor([len(raw)], dtype=torch.int64, device=device)
    dist.broadcast(length, root, group=group)
    content = torch.zeros(max(1, int(length)), dtype=torch.uint8, device=device)
    if dist.get_rank() == root and raw:
        content.copy_(torch.frombuffer(bytearray(raw), dtype=torch.uint8))
    dist.broadcast(content, root, group=group)
    return bytes(content.cpu().tolist())[: int(length)].decode()


def all_equal(text: str, group: Any) -> bool:
    """Whether all ranks have this text; 32 bytes a rank travel, however long it is."""
    digest = hashlib.sha256(text.encode()).digest()
    words = [int.from_bytes(digest[i : i + 8], "little", signed=True) for i in range(0, 32, 8)]
    return all(row == words for row in gather_numbers(words, group))
