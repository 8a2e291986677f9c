"""The data every peer reads: photograph-like JPEGs in class folders, and small records.

    python benchmarks/feed_images.py FOLDER [COUNT]

Smooth noise of five octaves, lettering and luma grain give JPEGs of photographs' entropy (500x375, quality 92, 4:2:0,
about 95 KB); an image of pure noise or of one colour would flatter or punish entropy decoders. Needs Pillow and NumPy.
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

OCTAVES = ((3, 90), (8, 45), (24, 22), (64, 12), (160, 9))  # cells across the image, grey levels
GRAIN = 11
NUM_CLASSES = 100


def picture(number):
    """The pixels of one image, a pure function of its number."""
    from PIL import Image, ImageDraw, ImageFont

    draw = np.random.default_rng(number)
    height, width = (500, 375) if number % 4 == 3 else (375, 500)
    pixels = np.full((height, width, 3), 128, np.float32)
    for cells, levels in OCTAVES:
        noise = draw.standard_normal((max(2, cells * height // width), cells, 3), dtype=np.float32)
        for channel in range(3):
            smooth = Image.fromarray(noise[:, :, channel]).resize((width, height), Image.Resampling.BICUBIC)
            pixels[:, :, channel] += levels * np.asarray(smooth)
    pixels += GRAIN * draw.standard_normal((height, width, 1), dtype=np.float32)
    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    pen = ImageDraw.Draw(image)
    for _ in range(4):
        at = (int(draw.integers(0, width // 2)), int(draw.integers(0, height - 40)))
        colour = tuple(int(level) for level in draw.integers(0, 255, 3))
        font = ImageFont.load_default(size=float(draw.uniform(14, 56)))
        pen.text(at, f"sample {draw.integers(1_000_000):06d}", fill=colour, font=font)
    return image


def write_image(folder, number):
    path = folder / f"c{number % NUM_CLASSES:03d}" / f"{number:06d}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(number).save(path, quality=92, subsampling="4:2:0")


def write_images(folder, numbers):
    for number in numbers:
        write_image(folder, number)


def make_images(folder, count, processes=2):
    """`count` JPEGs under `folder`; those already there are kept."""
    have = {int(path.stem) for path in folder.glob("c*/*.jpg") if path.stat().st_size}
    wanted = [number for number in range(count) if number not in have]
    with ProcessPoolExecutor(processes) as pool:
        list(pool.map(write_images, [folder] * 64, [wanted[part::64] for part in range(64)]))


def make_records(folder, count, record_bytes):
    """`count` records of random bytes with a label, as two NumPy files."""
    if (folder / "y.npy").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(count)
    x = np.lib.format.open_memmap(folder / "x.npy", mode="w+", dtype=np.uint8, shape=(count, record_bytes))
    for start in range(0, count, 100_000):
        part = x[start : start + 100_000]
        part[:] = draw.integers(0, 256, part.shape, dtype=np.uint8)
    x.flush()
    np.save(folder / "y.npy", draw.integers(0, 10, count))


if __name__ == "__main__":
    make_images(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 4000)
