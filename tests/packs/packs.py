"""Sources and packs that the tests of packing share: small, seeded, and the same bytes every time."""

import hashlib
import io
from pathlib import Path

import numpy as np

from topout.packs.fields import Field
from topout.packs.manifest import Manifest
from topout.packs.packing.options import PackOptions
from topout.packs.packing.packer import PackReport, pack
from topout.packs.packing.writer import PackWriter
from topout.packs.sources import open_source

FIELDS = (
    Field(name="pixels", kind="array", shape=(2, 3), dtype="uint8"),
    Field(name="label", kind="int"),
    Field(name="weight", kind="float"),
    Field(name="caption", kind="str"),
)


def jpeg(seed: int = 0, size: tuple[int, int] = (40, 30), **options) -> bytes:
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    target = io.BytesIO()
    Image.fromarray(pixels).save(target, "JPEG", **options)
    return target.getvalue()


def image_folder(root: Path, per_class: int = 5, classes: tuple[str, ...] = ("cat", "dog")) -> Path:
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for image in range(per_class):
            (root / name / f"{image:03d}.jpg").write_bytes(jpeg(100 * number + image))
    return root


def file_folder(root: Path, num_files: int, num_bytes: int) -> Path:
    root.mkdir(parents=True)
    draw = np.random.default_rng(7)
    for number in range(num_files):
        (root / f"{number:04d}.bin").write_bytes(draw.bytes(num_bytes + number))
    return root


def sample(number: int) -> dict[str, object]:
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3) + number % 200
    return {"pixels": pixels, "label": number - 3, "weight": number / 4, "caption": "é\n" * (number % 5)}


def small_pack(path: Path, num_samples: int = 20, shard_bytes: int = 4096 + 120) -> Manifest:
    with PackWriter(path, fields=FIELDS, shard_bytes=shard_bytes) as writer:
        for number in range(num_samples):
            writer.add(f"sample-{number}", sample(number))
    assert writer.manifest is not None
    return writer.manifest


def pack_folder(source: Path, destination: Path, **options) -> PackReport:
    name, listing = open_source(source)
    return pack(listing, (name, source), destination, PackOptions(**options))


def contents(folder: Path) -> dict[str, str]:
    """Every file of a pack by its hash; equal for packs that are byte-identical."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def flip(path: Path, byte: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1 << bit
    path.write_bytes(data)
