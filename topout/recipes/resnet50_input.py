"""Batches for the recipe: packs, folders of JPEGs, or random numbers that stay on the device.

A folder goes through Pillow and a DataLoader, as in most scripts. A pack of the same folder (`topout pack`) goes
through `topout.Loader`, with the same crops and flips in distribution, many times faster; see docs/feed.md.
"""

import colorsys
import os
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch.utils.data import DataLoader, Dataset

import topout
from topout.feed.augment import IMAGENET_MEAN, IMAGENET_STD, eval_images, train_images

MEAN = torch.tensor(IMAGENET_MEAN)[:, None, None]
STD = torch.tensor(IMAGENET_STD)[:, None, None]


class Synthetic:
    """The same batch again and again, on the device from the start: what training costs when input costs nothing."""

    def __init__(self, options, num_classes, ctx):
        shape = options.batch_size, 3, options.size, options.size
        self.images = torch.randn(shape, device=ctx.device).to(options.dtype, memory_format=torch.channels_last)
        self.labels = torch.randint(0, num_classes, (options.batch_size,), device=ctx.device)
        self.num_batches, self.world_size = options.steps, ctx.world_size  # each rank has its own already

    def __len__(self):
        return self.num_batches

    def __iter__(self):
        return ((self.images, self.labels) for _ in range(self.num_batches))

    def state_dict(self):
        return {"epoch": 0}

    def load_state_dict(self, state):
        pass


class JpegFolder(Dataset):
    """FOLDER/class/image.jpg, cropped at random and flipped for training, or cut from the middle."""

    def __init__(self, folder, size, is_training):
        self.classes = sorted(entry.name for entry in Path(folder).iterdir() if entry.is_dir())
        self.paths = [
            (path, number)
            for number, name in enumerate(self.classes)
            for path in sorted(Path(folder, name).iterdir())
            if path.suffix.lower() in (".jpg", ".jpeg", ".png")
        ]
        self.size, self.is_training = size, is_training

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path, label = self.paths[index]
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        image = self._random_part(image) if self.is_training else self._middle(image)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return (pixels / 255 - MEAN) / STD, label

    def _random_part(self, image):
        """8 % to all of the area, with a ratio of 3:4 to 4:3: as torchvision's RandomResizedCrop."""
        for _ in range(10):
            area = image.width * image.height * random.uniform(0.08, 1)
            ratio = (4 / 3) ** random.uniform(-1, 1)
            width, height = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
            if width <= image.width and height <= image.height:
                left, top = random.randint(0, image.width - width), random.randint(0, image.height - height)
                break
        else:
            left, top, width, height = 0, 0, image.width, image.height
        box = (left, top, left + width, top + height)
        part = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
        return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else part

    def _middle(self, image):
        side = min(image.size) * 0.875  # 224 of 256
        left, top = (image.width - side) / 2, (image.height - side) / 2
        box = (left, top, left + side, top + side)
        return image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)


def _seed_worker(_worker):
    random.seed(torch.initial_seed())  # Python's own numbers are the same in all workers otherwise


def training_batches(source, options, ctx):
    """Equally many batches of equal size on every rank."""
    if is_pack(source):
        return from_pack(source, options, ctx, transform=train_images(options.size), seed=options.seed)
    return DataLoader(
        JpegFolder(source, options.size, is_training=True),
        options.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
        pin_memory=ctx.device.type == "cuda",
        worker_init_fn=_seed_worker,
    )  # ctx.wrap gives each rank its share of it


def evaluation_batches(source, options, ctx):
    """Every image once, whatever the number of ranks."""
    if is_pack(source):
        middle = eval_images(round(options.size / 0.875), options.size)
        return from_pack(source, options, ctx, transform=middle, shuffle=False, last="exact")
    return DataLoader(
        JpegFolder(source, options.size, is_training=False), options.batch_size, num_workers=options.workers
    )  # ctx.evaluate deals it out


def from_pack(source, options, ctx, **choices):
    """A loader of this rank's share, on its device ahead of use where that is a GPU."""
    return topout.Loader(
        source,
        options.batch_size,
        dtype=str(options.dtype).removeprefix("torch."),
        device=ctx.device if ctx.device.type == "cuda" else None,
        rank=ctx.rank,
        world_size=ctx.world_size,
        **choices,
    )


def num_classes_of(source):
    if is_pack(source):
        with topout.Loader(source, 1, last="exact") as loader:
            return len(loader.classes)
    return len(JpegFolder(source, 1, is_training=False).classes)


def is_pack(source):
    return "://" in str(source) or Path(source, "pack.json").exists()


def default_workers():
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, len(os.sched_getaffinity(0)) // local - 1)


def make_small_folders(folder, num_classes=8, num_train=48, num_eval=16, size=72):
    """Discs and squares in the hue of their class, on noise: JPEGs that a small net learns in seconds."""
    for split, count in (("train", num_train), ("val", num_eval)):
        for number in range(num_classes * count):
            draw = random.Random(f"{split} {number}")
            noise = np.random.default_rng(draw.getrandbits(32)).integers(0, 256, (9, 9, 3), dtype=np.uint8)
            image = Image.fromarray(noise).resize((size, size))
            hue = (number % num_classes + draw.uniform(-0.2, 0.2)) / num_classes
            colour = tuple(round(255 * part) for part in colorsys.hsv_to_rgb(hue % 1, 0.9, 0.9))
            left, top, side = draw.uniform(0, size / 3), draw.uniform(0, size / 3), draw.uniform(size / 3, size / 1.5)
            pen = ImageDraw.Draw(image)
            draw.choice((pen.ellipse, pen.rectangle))((left, top, left + side, top + side), fill=colour)
            path = Path(folder, split, f"class{number % num_classes}", f"{number:05d}.jpg")
            path.parent.mkdir(parents=True, exist_ok=True)
            image.save(path, quality=90)
