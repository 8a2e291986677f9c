"""JPEG bytes to a training batch, as the peers without a pipeline of their own do it.

The transform is torchvision's on PIL images, or a decoder and OpenCV in threads.
"""

import io
import math
import random

import numpy as np

SIDE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)

# what a row that transforms PIL images imports before the clock starts
PIL_IMPORTS = ("torch", "feed_peers.pipeline:import_torchvision", "torchvision.transforms", "PIL.JpegImagePlugin")

_library = None


def import_torchvision():
    """torchvision beside a CPU torch.

    Its wheel is a CUDA build: its operators cannot load, and the import dies on the first one it looks up. Declaring
    those it looks up lets the transforms on PIL images, which need none, load.
    """
    global _library
    from torch import library

    if _library is None:
        _library = library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision

    return torchvision


class PilTransform:
    """JPEG bytes -> float32 [3, 224, 224]; a class, so that workers can be handed one."""

    def __init__(self):
        import_torchvision()
        from torchvision import transforms as t

        steps = [t.RandomResizedCrop(SIDE), t.RandomHorizontalFlip(), t.ToTensor(), t.Normalize(MEAN, STD)]
        self.transform = t.Compose(steps)

    def __call__(self, data):
        from PIL import Image

        return self.transform(Image.open(io.BytesIO(data)).convert("RGB"))


def crop_box(width, height, draw):
    """(x, y, w, h) by RandomResizedCrop's rule."""
    for _ in range(10):
        area = width * height * draw.uniform(*SCALE)
        ratio = math.exp(draw.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return draw.randint(0, width - w), draw.randint(0, height - h), w, h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


def forced_boxes(sizes, seed=0):
    draw = random.Random(seed)
    return [crop_box(width, height, draw) for width, height in sizes]


def pil_reference(jpegs, boxes):
    """What the reference makes of each JPEG and crop: uint8 [n, 224, 224, 3]."""
    from PIL import Image

    rows = []
    for data, (x, y, w, h) in zip(jpegs, boxes, strict=True):
        image = Image.open(io.BytesIO(data)).convert("RGB").crop((x, y, x + w, y + h))
        rows.append(np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)))
    return np.stack(rows)


def normalise(pixels, out, is_flipped):
    """uint8 [224, 224, 3] into float32 [3, 224, 224]."""
    mean, inverse = np.array(MEAN, np.float32) * 255, 1 / (np.array(STD, np.float32) * 255)
    pixels = pixels[:, ::-1] if is_flipped else pixels
    shifted = np.subtract(pixels, mean, dtype=np.float32).transpose(2, 0, 1)
    np.multiply(shifted, inverse[:, None, None], out=out)


def threaded(work, one):
    """An epoch in which `num_threads` threads call `one(jpeg, out, draw)`, two batches ahead."""
    from concurrent.futures import ThreadPoolExecutor

    import torch

    torch.set_num_threads(1)
    paths = work.images.paths
    pool = ThreadPoolExecutor(work.num_threads)
    draws = [random.Random(number) for number in range(work.batch_size)]

    def load(path, out, draw):
        with open(path, "rb") as file:
            one(file.read(), out, draw)

    def submit(numbers):
        batch = torch.empty(len(numbers), 3, SIDE, SIDE)
        rows = zip(numbers, batch.numpy(), draws, strict=False)
        return batch, [pool.submit(load, paths[number], out, draw) for number, out, draw in rows]

    def epoch(number):
        waiting = []
        for numbers in work.batches(number):
            waiting.append(submit(numbers))
            if len(waiting) > 2:
                yield finished(waiting.pop(0))
        while waiting:
            yield finished(waiting.pop(0))

    return epoch


def finished(submitted):
    batch, futures = submitted
    for future in futures:
        future.result()
    return batch


def first_of(loader):
    """An epoch over a loader whose batches are (images, labels)."""

    def epoch(_):
        for batch in loader:
            yield batch[0] if isinstance(batch, (list, tuple)) else batch["x"]

    return epoch
