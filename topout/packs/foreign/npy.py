"""Arrays as .npy bytes: self-describing, read by NumPy everywhere. Never with pickle.

Not for rows of one shape, which belong together in one array.
"""

import io
from typing import Any

import numpy as np


def write_npy(array: np.ndarray[Any, Any]) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asarray(array), allow_pickle=False)
    return out.getvalue()


def read_npy(data: bytes | memoryview) -> np.ndarray[Any, Any]:
    """Raises ValueError for anything but a whole array; never allocates more than the bytes given."""
    stream = io.BytesIO(data)
    shape, is_fortran, dtype = read_npy_head(stream)
    values = stream.getbuffer()[stream.tell() :]
    if dtype.itemsize * int(np.prod(shape, dtype=object)) != len(values):
        raise ValueError("the array does not have the bytes its shape asks for")
    return np.frombuffer(bytes(values), dtype).reshape(shape, order="F" if is_fortran else "C")


def read_npy_head(stream: io.BufferedIOBase | Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and item type; the stream stands at the first item. Raises ValueError."""
    try:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in read:
            raise ValueError(f"version {version} of .npy is not known")
        shape, is_fortran, dtype = read[version](stream)
    except ValueError:
        raise
    # NumPy parses the head as a Python literal; what a damaged one raises is open-ended
    except Exception as error:
        raise ValueError(f"its head is damaged: {type(error).__name__}: {error}") from error
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which only pickle can read")
    if any(length < 0 for length in shape):
        raise ValueError("its shape is negative")
    return shape, is_fortran, dtype
