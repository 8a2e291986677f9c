"""Samples to write and sources read whole, for tests of formats."""

import io
from pathlib import Path

import numpy as np

from topout.packs.fields import Field
from topout.packs.pack import Pack, open_pack
from topout.packs.packing.writer import PackWriter
from topout.packs.sources import BadEntry, Listing, SourceOptions, open_source


def jpeg(shade: int) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (8, 6), (shade, 2 * shade % 256, 255 - shade)).save(out, "JPEG")
    return out.getvalue()


def png(shade: int) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.new("L", (5, 4), shade).save(out, "PNG")
    return out.getvalue()


def read_all(path: Path, name: str | None = None, columns: tuple[str, ...] | None = None) -> tuple[Listing, list]:
    _, listing = open_source(path, name, SourceOptions(columns=columns))
    return listing, list(listing.read_range(0, len(listing.names)))


def reasons(found: list) -> list[str | None]:
    """Why an entry is bad, None for a sample."""
    return [entry.reason if isinstance(entry, BadEntry) else None for entry in found]


def is_same(one: object, other: object) -> bool:
    """Equal, arrays with their types and shapes, floats with their bits."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, float) and isinstance(other, float):
        return repr(one) == repr(other)
    return type(one) is type(other) and one == other


def make_pack(path: Path, fields: list[Field], samples: dict[str, dict], classes: list[str] | None = None) -> Pack:
    with PackWriter(path, fields=fields, classes=classes) as writer:
        for name, sample in samples.items():
            writer.add(name, sample)
    return open_pack(path)
