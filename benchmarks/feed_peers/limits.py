"""The machine's limits, measured in the same rounds as the peers: decode, copy, sequential read, memory-map gather.

Every ratio of the results is to a limit of the same run. They verify nothing and decode no crop,
so nothing here is a way to feed a training.
"""

import ctypes
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from feed_peers.adapter import Adapter, Writer

SOURCE = Path(__file__).with_name("limits.c")


def library(folder):
    """The C limits, built once beside the data."""
    built = folder / "limits.so"
    if not built.exists() or built.stat().st_mtime < SOURCE.stat().st_mtime:
        command = ["cc", "-O3", "-march=native", "-shared", "-fPIC", "-o", built, SOURCE, "-ljpeg", "-lpthread"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"limits.c: {done.stderr.strip().splitlines()[0]}")
    return ctypes.CDLL(str(built))


def write_images(images, destination):
    """All files in one, and where each starts."""
    destination.mkdir(parents=True)
    offsets = [0]
    with open(destination / "data.bin", "wb") as out:
        for path in images.paths:
            offsets.append(offsets[-1] + out.write(Path(path).read_bytes()))
    np.save(destination / "offsets.npy", np.array(offsets, np.int64))


def read_all(images, destination):
    """Only reads, two threads."""
    with ThreadPoolExecutor(2) as pool:
        for _ in pool.map(lambda path: len(Path(path).read_bytes()), images.paths):
            pass
    destination.touch()


def write_all(images, destination):
    """Only writes: as many bytes as the files hold, from memory, a MiB at a time."""
    left = sum(os.path.getsize(path) for path in images.paths)
    block = np.random.default_rng(0).bytes(1 << 20)
    with open(destination, "wb", buffering=0) as out:
        while left > 0:
            left -= out.write(block[:left])


def copy_all(images, destination):
    """Every file into its place in one file, two threads: the least a packer can do."""
    paths = images.paths
    ends = np.cumsum([os.path.getsize(path) for path in paths]).tolist()
    handle = os.open(destination, os.O_WRONLY | os.O_CREAT, 0o644)

    def copy(path, end):
        data = Path(path).read_bytes()
        os.pwrite(handle, data, end - len(data))

    with ThreadPoolExecutor(2) as pool:
        for _ in pool.map(copy, paths, ends):
            pass
    os.close(handle)


def pointer(array):
    return ctypes.c_void_p(array.ctypes.data)


def decode(*, is_entropy_only):
    def start(work):
        native = library(work.store.parent)
        data = np.fromfile(work.store / "data.bin", np.uint8)
        offsets = np.load(work.store / "offsets.npy")

        def epoch(number):
            for numbers in work.batches(number):
                chosen = np.ascontiguousarray(numbers, np.int64)
                failed = native.decode_batch(
                    pointer(data), pointer(offsets), pointer(chosen), len(chosen), work.num_threads, is_entropy_only
                )
                assert failed == 0
                yield len(chosen), 0

        return epoch

    return start


def copy_memory(work):
    data, offsets = np.fromfile(work.store / "data.bin", np.uint8), np.load(work.store / "offsets.npy")
    buffer = np.empty(work.batch_size * 600_000, np.uint8)

    def epoch(_):
        for start in range(0, len(offsets) - 1, work.batch_size):
            stop = min(start + work.batch_size, len(offsets) - 1)
            num_bytes = int(offsets[stop] - offsets[start])
            buffer[:num_bytes] = data[offsets[start] : offsets[stop]]
            yield stop - start, num_bytes

    return epoch


def read_in_order(work):
    offsets = np.load(work.store / "offsets.npy")
    buffer = memoryview(bytearray(work.batch_size * 600_000))
    file = open(work.store / "data.bin", "rb", buffering=0)  # noqa: SIM115, read until the process ends

    def epoch(_):
        file.seek(0)
        for start in range(0, len(offsets) - 1, work.batch_size):
            stop = min(start + work.batch_size, len(offsets) - 1)
            num_bytes = int(offsets[stop] - offsets[start])
            assert file.readinto(buffer[:num_bytes]) == num_bytes
            yield stop - start, num_bytes

    return epoch


def map_and_copy(work):
    """Shuffled, like a loader: each sample copied out of the memory map."""
    data, offsets = np.memmap(work.store / "data.bin", np.uint8, "r"), np.load(work.store / "offsets.npy").tolist()
    data, buffer = np.asarray(data), np.empty(work.batch_size * 600_000, np.uint8)

    def epoch(number):
        for numbers in work.batches(number):
            at = 0
            for item in numbers.tolist():
                start, stop = offsets[item], offsets[item + 1]
                buffer[at : at + stop - start] = data[start:stop]
                at += stop - start
            yield len(numbers), at

    return epoch


def map_gather(work):
    import torch

    x, y = work.records.x, work.records.y

    def epoch(number):
        for numbers in work.batches(number):
            yield torch.from_numpy(x[numbers]), torch.from_numpy(y[numbers])

    return epoch


def native_gather(work):
    import torch

    native = library(work.records.folder)
    x, y = work.records.x, work.records.y
    width = ctypes.c_int64(work.records.record_bytes)

    def epoch(number):
        for numbers in work.batches(number):
            rows = torch.empty(len(numbers), work.records.record_bytes, dtype=torch.uint8)
            out = ctypes.c_void_p(rows.data_ptr())
            native.gather_rows(pointer(x), width, pointer(numbers), len(numbers), out)
            yield rows, torch.from_numpy(y[numbers])

    return epoch


WRITERS = (
    Writer(name="concatenated", environment="topout", images=write_images),
    Writer(name="limit: files into one file, 2 threads", environment="topout", images=copy_all),
    Writer(name="limit: read the files, 2 threads", environment="topout", images=read_all),
    Writer(name="limit: write as much", environment="topout", images=write_all),
)
BARE = {"environment": "topout", "kind": "limit", "writer": "concatenated", "imports": ()}
ADAPTERS = (
    Adapter(name="limit: libjpeg-turbo, full decode, 2 threads", case="jpeg", start=decode(is_entropy_only=0), **BARE),
    Adapter(name="limit: entropy decode only, 2 threads", case="jpeg", start=decode(is_entropy_only=1), **BARE),
    Adapter(name="limit: memcpy, in order", case="blobs", start=copy_memory, **BARE),
    Adapter(name="limit: sequential read", case="blobs", start=read_in_order, **BARE),
    Adapter(name="limit: memory map, shuffled", case="blobs", start=map_and_copy, **BARE),
    Adapter(name="limit: memory-map gather", case="records", environment="topout", kind="limit", start=map_gather),
    Adapter(name="limit: gather in C", case="records", environment="topout", kind="limit", start=native_gather),
)
