"""Arrays of one sample brought to one height and width, and the cutting of large ones into tiles.

Bands of a satellite image come at 10, 20 and 60 m; training wants them at one size, and scaling them in every epoch
starves the device. Height and width are the last two dimensions. Bilinear, with the pixels' areas aligned.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topout.packs.fields import Field, Sample

BANDS = "bands"


def band_fields(fields: Sequence[Field], size: tuple[int, int]) -> list[Field]:
    """All arrays become the one field `bands`, in their order."""
    arrays = [field for field in fields if field.kind == "array"]
    kept = [field for field in fields if field.kind != "array"]
    dtypes = {field.dtype for field in arrays}
    counts = [_num_bands(field.shape) for field in arrays]
    known = [count for count in counts if count is not None]
    shape = (sum(known), *size) if len(known) == len(counts) else None
    return [Field(name=BANDS, kind="array", shape=shape, dtype=dtypes.pop() if len(dtypes) == 1 else None), *kept]


def stack_bands(sample: Sample, names: Sequence[str], size: tuple[int, int]) -> Sample:
    """Raises ValueError for arrays that are no bands."""
    stacked = []
    for name in names:
        array = np.asarray(sample[name])
        if array.ndim not in (2, 3) or not array.size:
            raise ValueError(f"{name} has the shape {array.shape}; bands are (height, width) or (bands, height, width)")
        stacked.append(resized(array if array.ndim == 3 else array[np.newaxis], size))
    others = {name: value for name, value in sample.items() if name not in names}
    return {BANDS: np.concatenate(stacked), **others}


def resized(bands: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """(bands, height, width) at another height and width, of the same item type."""
    if bands.shape[1:] == size:
        return bands
    rows = _mix(bands.astype(np.float64), size[0], axis=1)
    values = _mix(rows, size[1], axis=2)
    if np.issubdtype(bands.dtype, np.integer):
        limits = np.iinfo(bands.dtype)
        values = np.clip(np.rint(values), limits.min, limits.max)
    return values.astype(bands.dtype)


def tile_corners(size: tuple[int, int], tile: int) -> Iterator[tuple[int, int]]:
    """Top left corners, row by row; the last of a row reaches back, so that every tile is whole where it can be."""
    for top in _starts(size[0], tile):
        for left in _starts(size[1], tile):
            yield top, left


def tiled_field(field: Field, tile: int) -> Field:
    if field.kind != "array" or field.shape is None:
        return field
    is_whole = len(field.shape) >= 2 and min(field.shape[-2:]) >= tile
    shape = (*field.shape[:-2], tile, tile) if is_whole else None
    return Field(name=field.name, kind=field.kind, codec=field.codec, shape=shape, dtype=field.dtype)


def _starts(length: int, tile: int) -> list[int]:
    if length <= tile:
        return [0]
    return sorted({*range(0, length - tile, tile), length - tile})


def _mix(values: NDArray[np.float64], length: int, axis: int) -> NDArray[np.float64]:
    given = values.shape[axis]
    places = np.clip((np.arange(length) + 0.5) * given / length - 0.5, 0, given - 1)
    low = np.floor(places).astype(np.int64)
    high = np.minimum(low + 1, given - 1)
    weights = (places - low).reshape([-1 if number == axis else 1 for number in range(values.ndim)])
    mixed: NDArray[np.float64] = np.take(values, low, axis) * (1 - weights) + np.take(values, high, axis) * weights
    return mixed


def _num_bands(shape: tuple[int, ...] | None) -> int | None:
    if shape is None or len(shape) not in (2, 3):
        return None
    return shape[0] if len(shape) == 3 else 1
