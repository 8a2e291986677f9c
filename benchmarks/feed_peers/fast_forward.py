"""FFCV: one file of re-encoded JPEGs, decoded and resized by numba-compiled threads.

Its writer decodes and encodes again (quality 92), so its output carries a second JPEG generation.
"""

import numpy as np

from feed_peers.adapter import Adapter, Writer
from feed_peers.pipeline import MEAN, SIDE, STD, first_of

QUALITY = 92


def write_images(images, destination):
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter
    from PIL import Image

    paths, labels = images.paths, images.labels

    class Decoded:
        def __len__(self):
            return len(paths)

        def __getitem__(self, number):
            return Image.open(paths[number]).convert("RGB"), labels[number]

    fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=QUALITY), "label": IntField()}
    DatasetWriter(str(destination), fields, num_workers=2).from_indexed_dataset(Decoded())


def image_batches(work):
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, ToTensor, ToTorchImage

    images = [
        RandomResizedCropRGBImageDecoder((SIDE, SIDE)),
        RandomHorizontalFlip(),
        NormalizeImage(np.array(MEAN) * 255, np.array(STD) * 255, np.float32),
        ToTensor(),
        ToTorchImage(),
    ]
    loader = Loader(
        str(work.store), batch_size=work.batch_size, num_workers=work.num_threads, order=OrderOption.RANDOM,
        os_cache=True, drop_last=False,
        pipelines={"image": images, "label": [IntDecoder(), ToTensor()]},
    )  # fmt: skip
    return first_of(loader)


def forced(jpegs, boxes):
    import cv2
    from ffcv.libffcv import resize_crop

    rows = []
    for data, (x, y, w, h) in zip(jpegs, boxes, strict=True):
        once = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        stored = cv2.imencode(".jpg", once, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1]
        pixels = cv2.cvtColor(cv2.imdecode(stored, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
        out = np.zeros((SIDE, SIDE, 3), np.uint8)
        resize_crop(pixels, y, y + h, x, x + w, out)
        rows.append(out)
    return np.stack(rows)


USES = ("torch", "ffcv", "ffcv.loader", "ffcv.fields.rgb_image", "ffcv.transforms")
WRITERS = (
    Writer(
        name="beton",
        environment="ffcv",
        images=write_images,
        imports=USES,
        note="FFCV; decodes and encodes every image",
    ),
)
ADAPTERS = (
    Adapter(
        name="FFCV, 2 threads", case="jpeg", environment="ffcv", writer="beton", start=image_batches, forced=forced,
        imports=USES, note="encodes the JPEGs again",
    ),
)  # fmt: skip
