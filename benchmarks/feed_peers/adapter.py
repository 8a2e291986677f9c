"""What the harness knows of a peer: how it writes its format, and how it hands out batches.

A peer's file has `WRITERS` and `ADAPTERS` and imports its library inside functions only, so that one list of all peers
can be had where none of them is installed.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Epoch = Callable[[int], Iterator[Any]]  # epoch number -> batches


@dataclass(frozen=True, kw_only=True)
class Images:
    """JPEGs in class folders."""

    folder: Path

    @functools.cached_property
    def paths(self):
        return sorted(str(path) for path in self.folder.rglob("*.jpg"))

    @property
    def labels(self):
        return [int(Path(path).parent.name[1:]) for path in self.paths]


@dataclass(frozen=True, kw_only=True)
class Records:
    """`count` rows of `record_bytes` with a label."""

    folder: Path
    count: int
    record_bytes: int

    @property
    def x(self):
        return np.load(self.folder / "x.npy", mmap_mode="r")

    @property
    def y(self):
        return np.load(self.folder / "y.npy")

    def rows(self):
        """(bytes, label) of each record; for writers that take one sample at a time."""
        for row, label in zip(self.x, self.y.tolist(), strict=True):
            yield row.tobytes(), label


@dataclass(frozen=True, kw_only=True)
class Work:
    """One measurement's task."""

    images: Images | None
    records: Records | None
    store: Path | None  # what the adapter's writer wrote
    batch_size: int
    num_threads: int

    def batches(self, epoch):
        """Shuffled sample numbers, one array a batch; the last one may be short."""
        count = self.records.count if self.records else len(self.images.paths)
        order = np.random.default_rng(epoch).permutation(count)
        return (order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size))


@dataclass(frozen=True, kw_only=True)
class Writer:
    name: str
    environment: str
    images: Callable[[Images, Path], None] | None = None
    records: Callable[[Records, Path], None] | None = None
    imports: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Adapter:
    name: str
    case: str  # jpeg: float32 [n, 3, 224, 224]; blobs: (samples, bytes) copied; records: uint8 [n, bytes] and labels
    environment: str
    start: Callable[[Work], Epoch]
    writer: str | None = None
    imports: tuple[str, ...] = ("torch",)  # loaded before the clock starts
    kind: str = "peer"  # peer | apart (a lighter task, listed below) | limit | topout
    note: str = ""
    forced: Callable[[list[bytes], list[tuple[int, int, int, int]]], Any] | None = None  # cut at (x, y, w, h)


def modules():
    package = importlib.import_module("feed_peers")
    for found in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"feed_peers.{found.name}")
        if hasattr(module, "ADAPTERS"):
            yield module


def all_adapters():
    return [adapter for module in modules() for adapter in module.ADAPTERS]


def all_writers():
    return {writer.name: writer for module in modules() for writer in module.WRITERS}


class BatchBuffer:
    """The one reused buffer into which every reader of raw blobs copies its samples."""

    def __init__(self, batch_size: int, most_bytes: int = 600_000) -> None:
        self.bytes = np.empty(batch_size * most_bytes, np.uint8)

    def fill(self, blobs):
        """(samples, bytes) of one batch."""
        at = num = 0
        for blob in blobs:
            data = blob if isinstance(blob, np.ndarray) else np.frombuffer(blob, np.uint8)
            self.bytes[at : at + len(data)] = data
            at += len(data)
            num += 1
        return num, at


def grouped(items, batch_size):
    """Lists of `batch_size` items, the last one maybe shorter."""
    group = []
    for item in items:
        group.append(item)
        if len(group) == batch_size:
            yield group
            group = []
    if group:
        yield group


def tensors(rows, labels):
    """A batch of records from one bytes-like object a row."""
    import torch

    joined = bytearray().join(rows)  # a bytearray, for torch wants memory it may write
    x = torch.from_numpy(np.frombuffer(joined, np.uint8).reshape(len(rows), -1))
    return x, torch.tensor(labels)
