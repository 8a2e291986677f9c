"""The compiled library, called through ctypes, which lets go of the interpreter lock for the length of each call.

`library()` is None where it could not be compiled, or where TOPOUT_NATIVE=0 forbids it; callers then take their Python
twin. Structures mirror topout/native/{records,image}.h; `native.optimizer` has that of optimizer.h. Not for deciding
anything: `native_pipeline` does.
"""

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_POINTER = ctypes.c_void_p
_SHORT_BYTES = 16 << 10
Int64s = NDArray[np.int64]


class PackView(ctypes.Structure):
    """`pack_view` in records.h."""

    _fields_ = [
        ("maps", _POINTER), ("descriptors", _POINTER), ("data_ends", _POINTER), ("rows", _POINTER),
        ("num_shards", ctypes.c_uint64), ("num_rows", ctypes.c_uint64), ("row_bytes", ctypes.c_uint32),
        ("num_variable", ctypes.c_uint32), ("fixed_bytes", ctypes.c_uint32), ("image_field", ctypes.c_uint32),
    ]  # fmt: skip


class FieldCopy(ctypes.Structure):
    """`field_copy` in records.h."""

    _fields_ = [
        ("offset", ctypes.c_uint32), ("num_bytes", ctypes.c_uint32), ("is_in_row", ctypes.c_int32), ("out", _POINTER),
    ]  # fmt: skip


class ImageTransformation(ctypes.Structure):
    """`image_transform` in image.h."""

    _fields_ = [
        ("kind", ctypes.c_int32), ("out_width", ctypes.c_int32), ("out_height", ctypes.c_int32),
        ("short_side", ctypes.c_int32), ("area_low", ctypes.c_double), ("area_high", ctypes.c_double),
        ("ratio_low", ctypes.c_double), ("ratio_high", ctypes.c_double), ("log_ratio_low", ctypes.c_double),
        ("log_ratio_high", ctypes.c_double), ("flip_probability", ctypes.c_double), ("pixels", ctypes.c_int32),
        ("channels_last", ctypes.c_int32), ("values", _POINTER * 3), ("most_pixels", ctypes.c_int64),
    ]  # fmt: skip


class ImageChoice(ctypes.Structure):
    """`image_choice` in image.h."""

    _fields_ = [(name, ctypes.c_int32) for name in ("left", "top", "width", "height", "is_flipped")]


def address_of(array: NDArray[Any]) -> int:
    """`array.ctypes.data`, in a third of its time, which is felt in batches of small records."""
    if array.flags.writeable and array.size:
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    return array.ctypes.data


class Library:
    """The functions, with their types declared; buffers are numpy arrays, which must be contiguous."""

    def __init__(self, path: Path) -> None:
        self.path = path
        library = ctypes.CDLL(str(path))
        self._crc32c = library.topout_crc32c
        self._crc32c.argtypes = [ctypes.c_uint32, _POINTER, ctypes.c_size_t]
        self._crc32c.restype = ctypes.c_uint32
        # again, keeping the interpreter lock: to have it back takes longer than a few bytes do
        self._short_crc32c = ctypes.PyDLL(str(path)).topout_crc32c
        self._short_crc32c.argtypes, self._short_crc32c.restype = self._crc32c.argtypes, ctypes.c_uint32
        self._gather = library.records_gather
        self._gather.argtypes = [_POINTER, _POINTER, ctypes.c_int64, _POINTER, ctypes.c_int32]
        self._gather.restype = ctypes.c_int64
        self._read = library.records_read
        self._read.argtypes = [
            _POINTER, _POINTER, ctypes.c_int64, _POINTER, ctypes.c_uint64, _POINTER, _POINTER, ctypes.c_int32,
        ]  # fmt: skip
        self._read.restype = ctypes.c_int64
        self.pool_open = library.pool_open
        self.pool_open.argtypes, self.pool_open.restype = [ctypes.c_int], _POINTER
        self.pool_close = library.pool_close
        self.pool_close.argtypes, self.pool_close.restype = [_POINTER], None
        self._pool_begin = library.pool_begin
        self._pool_begin.argtypes = [
            *[_POINTER] * 6, ctypes.c_int64, _POINTER, ctypes.c_uint64, _POINTER,
        ]  # fmt: skip
        self._pool_begin.restype = _POINTER
        self._pool_end = library.pool_end
        self._pool_end.argtypes, self._pool_end.restype = [_POINTER, _POINTER], ctypes.c_int64
        self._image = library.image_to_sample
        self._image.argtypes = [
            _POINTER, _POINTER, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64, _POINTER, _POINTER,
        ]  # fmt: skip
        self._worker_new = library.image_worker_new
        self._worker_new.argtypes, self._worker_new.restype = [], _POINTER
        self._worker_free = library.image_worker_free
        self._worker_free.argtypes, self._worker_free.restype = [_POINTER], None
        self.optimizer_step = library.optimizer_step
        self.optimizer_step.argtypes = [_POINTER, _POINTER, ctypes.c_int64, _POINTER]
        self.optimizer_step.restype = ctypes.c_int64

    def crc32c(self, data: bytes | bytearray | memoryview, value: int = 0) -> int:
        if isinstance(data, bytes):
            function = self._short_crc32c if len(data) < _SHORT_BYTES else self._crc32c
            return int(function(value, data, len(data)))
        array = np.frombuffer(data, np.uint8)
        return int(self._crc32c(value, array.ctypes.data, array.size))

    def gather(self, pack: PackView, numbers: Int64s, fields: "ctypes.Array[FieldCopy]") -> int:
        """Copies fields of verified samples to where they say; how many samples are damaged."""
        return int(self._gather(ctypes.byref(pack), address_of(numbers), len(numbers), fields, len(fields)))

    def read(
        self, pack: PackView, numbers: Int64s, out: NDArray[np.uint8], num_threads: int = 1
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
        """Records one after the other into `out`: where each begins (and the last ends), and the status of each."""
        offsets, status = np.empty(len(numbers) + 1, np.uint64), np.empty(len(numbers), np.uint8)
        self._read(
            ctypes.byref(pack), numbers.ctypes.data, len(numbers), out.ctypes.data, out.nbytes,
            offsets.ctypes.data, status.ctypes.data, num_threads,
        )  # fmt: skip
        return offsets, status

    def begin(
        self,
        pool: int,
        *,
        packs: "ctypes.Array[PackView]",
        which: NDArray[np.int32],
        transform: ImageTransformation,
        numbers: Int64s,
        keys: NDArray[np.uint64],
        out: NDArray[Any],
        status: NDArray[np.uint8],
    ) -> int:
        """Queues images for the rows of `out`; every argument must live until `end`, which takes what this returns."""
        batch = self._pool_begin(
            pool, packs, which.ctypes.data, ctypes.byref(transform), numbers.ctypes.data, keys.ctypes.data,
            len(numbers), out.ctypes.data, out[0].nbytes, status.ctypes.data,
        )  # fmt: skip
        if batch is None:
            raise MemoryError("no room for another batch")
        return int(batch)

    def end(self, pool: int, batch: int) -> int:
        """Waits for a batch: how many bytes of JPEG were read."""
        return int(self._pool_end(pool, batch))

    def image(
        self, transform: ImageTransformation, jpeg: bytes, key: int, out: NDArray[Any]
    ) -> tuple[int, ImageChoice]:
        """One image in this thread: what became of it (a status), and the window that was drawn."""
        choice, worker = ImageChoice(), self._worker_new()
        try:
            status = self._image(
                worker, ctypes.byref(transform), jpeg, len(jpeg), key, out.ctypes.data, ctypes.byref(choice)
            )
        finally:
            self._worker_free(worker)
        return int(status), choice


@cache
def library() -> Library | None:
    """Compiles it on first use where it is not there yet."""
    if os.environ.get("TOPOUT_NATIVE") == "0":
        return None
    from topout.native.build import find_or_compile

    try:
        return Library(find_or_compile())
    except (OSError, RuntimeError, AttributeError):
        return None


def why_not() -> str | None:
    """In words, for whoever wonders why the twin runs; None when the library is there."""
    if os.environ.get("TOPOUT_NATIVE") == "0":
        return "TOPOUT_NATIVE=0 is set"
    from topout.native.build import find_or_compile

    try:
        Library(find_or_compile())
    except (OSError, RuntimeError, AttributeError) as error:
        return str(error)
    return None
