"""NVIDIA DALI on the CPU: its own reader, region-of-interest decoder, antialiased resize and threads."""

import numpy as np

from feed_peers.adapter import Adapter
from feed_peers.pipeline import MEAN, RATIO, SCALE, SIDE, STD


def image_batches(work):
    import torch
    from nvidia.dali import fn, pipeline_def, types

    paths, labels = work.images.paths, work.images.labels

    @pipeline_def(batch_size=work.batch_size, num_threads=work.num_threads, device_id=None, prefetch_queue_depth=2)
    def training():
        jpegs, classes = fn.readers.file(files=paths, labels=labels, random_shuffle=True, initial_fill=len(paths))
        images = fn.decoders.image_random_crop(
            jpegs, device="cpu", output_type=types.RGB, random_area=list(SCALE), random_aspect_ratio=list(RATIO)
        )
        images = fn.resize(images, resize_x=SIDE, resize_y=SIDE)
        images = fn.crop_mirror_normalize(
            images, dtype=types.FLOAT, output_layout="CHW", mean=[255 * level for level in MEAN],
            std=[255 * level for level in STD], mirror=fn.random.coin_flip(),
        )  # fmt: skip
        return images, classes

    pipeline = training()
    pipeline.build()

    def epoch(_):
        for _batch in range(len(paths) // work.batch_size):
            images = pipeline.run()[0]
            yield torch.from_numpy(np.array(images.as_array()))  # DALI reuses its buffer, so a batch to keep is a copy

    return epoch


def forced(jpegs, boxes):
    from nvidia.dali import fn, pipeline_def, types

    def sample(info):
        number = info.idx_in_epoch % len(jpegs)  # it asks ahead, past the last one
        x, y, w, h = boxes[number]
        return np.frombuffer(jpegs[number], np.uint8), np.array([x, y], np.float32), np.array([w, h], np.float32)

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def cutting():
        data, start, shape = fn.external_source(source=sample, num_outputs=3, batch=False)
        images = fn.decoders.image_slice(
            data, start, shape, axis_names="WH", normalized_anchor=False, normalized_shape=False,
            output_type=types.RGB,
        )  # fmt: skip
        return fn.resize(images, resize_x=SIDE, resize_y=SIDE)

    pipeline = cutting()
    pipeline.build()
    return np.stack([np.array(pipeline.run()[0].at(0)) for _ in jpegs])


WRITERS = ()
ADAPTERS = (
    Adapter(
        name="DALI on the CPU, 2 threads", case="jpeg", environment="dali", start=image_batches, forced=forced,
        imports=("torch", "nvidia.dali", "nvidia.dali.fn", "nvidia.dali.types"),
    ),
)  # fmt: skip
