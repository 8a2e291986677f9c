"""Small packs for tests: photographs made of waves, labelled records, damage at a chosen sample."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from topout.packs.fields import Field
from topout.packs.packing.writer import PackWriter


def photograph(number: int, width: int = 96, height: int = 72) -> np.ndarray:
    """A smooth image with colours and an edge, another one for each number."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    waves = [128 + 100 * np.sin(x / (5 + number % 7) + y / (9 + channel) + number) for channel in range(3)]
    pixels = np.stack(waves, axis=-1)
    pixels[: height // 3, : width // 4] = (number * 37 % 256, number * 91 % 256, 200)
    return pixels.clip(0, 255).astype(np.uint8)


def jpeg(pixels: np.ndarray, **options: object) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", **{"quality": 90, **options})
    return out.getvalue()


def write_images(path: Path, num: int, *, num_classes: int = 4, shard_bytes: int = 1 << 20) -> Path:
    """`num` JPEGs of varying size; sample i has label i % num_classes."""
    fields = [Field(name="image", kind="jpeg"), Field(name="label", kind="int")]
    classes = [f"class-{number}" for number in range(num_classes)]
    with PackWriter(path, fields=fields, classes=classes, shard_bytes=shard_bytes) as writer:
        for number in range(num):
            data = jpeg(photograph(number, 64 + number % 5 * 16, 60 + number % 3 * 20))
            writer.add(
                f"{classes[number % num_classes]}/{number:04d}.jpg", {"image": data, "label": number % num_classes}
            )
    return path


def write_records(path: Path, num: int, *, shard_bytes: int = 1 << 20, first: int = 0) -> Path:
    """Records whose array holds its own number eight times; `hard` falls from num to 1."""
    fields = [
        Field(name="x", kind="array", shape=(2, 4), dtype="<i4"),
        Field(name="label", kind="int"),
        Field(name="hard", kind="float"),
    ]
    with PackWriter(path, fields=fields, shard_bytes=shard_bytes) as writer:
        for number in range(first, first + num):
            x = np.full((2, 4), number, dtype="<i4")
            writer.add(f"record {number}", {"x": x, "label": number, "hard": float(first + num - number)})
    return path


def damage(path: Path, *numbers: int) -> None:
    """Flips a bit in the middle of each sample's record."""
    from topout.packs.pack import open_pack

    with open_pack(path) as pack:
        places = [
            (pack.shards[int(row["shard"])].path, int(row["offset"]) + int(row["length"]) // 2)
            for row in (pack.index[number] for number in numbers)
        ]
    for file, offset in places:
        with open(file, "r+b") as shard:
            shard.seek(offset)
            byte = shard.read(1)[0]
            shard.seek(offset)
            shard.write(bytes([byte ^ 8]))
