"""Hugging Face datasets: memory-mapped Arrow tables, row by row and a batch at a time."""

from pathlib import Path

from feed_peers.adapter import Adapter, BatchBuffer, Writer, tensors
from feed_peers.pipeline import PIL_IMPORTS, PilTransform, first_of


def write_images(images, destination):
    import datasets

    def rows():
        for path, label in zip(images.paths, images.labels, strict=True):
            yield {"x": Path(path).read_bytes(), "y": label}

    kinds = datasets.Features({"x": datasets.Value("binary"), "y": datasets.Value("int64")})
    cache = f"{destination}.cache"
    datasets.Dataset.from_generator(rows, features=kinds, cache_dir=cache).save_to_disk(str(destination))


def write_records(records, destination):
    import datasets
    import numpy as np
    import pyarrow as pa

    rows = pa.py_buffer(np.ascontiguousarray(records.x))
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(records.record_bytes), records.count, [None, rows])
    table = pa.table({"x": fixed.cast(pa.binary()), "y": records.y})
    datasets.Dataset(table).save_to_disk(str(destination))


def image_batches(work):
    import datasets
    from torch.utils.data import DataLoader

    transform = PilTransform()
    dataset = datasets.load_from_disk(str(work.store))
    dataset.set_transform(lambda rows: {"x": [transform(data) for data in rows["x"]], "y": rows["y"]})
    return first_of(DataLoader(dataset, work.batch_size, shuffle=True, num_workers=2, persistent_workers=True))


def blobs(work):
    import datasets

    dataset = datasets.load_from_disk(str(work.store))
    buffer = BatchBuffer(work.batch_size)

    def epoch(number):
        for numbers in work.batches(number):
            yield buffer.fill(dataset[numbers.tolist()]["x"])

    return epoch


def record_batches(work):
    import datasets

    dataset = datasets.load_from_disk(str(work.store))

    def epoch(number):
        for numbers in work.batches(number):
            rows = dataset[numbers.tolist()]
            yield tensors(rows["x"], rows["y"])

    return epoch


def record_items(work):
    import datasets

    dataset = datasets.load_from_disk(str(work.store))

    def epoch(number):
        for numbers in work.batches(number):
            rows = [dataset[item] for item in numbers.tolist()]
            yield tensors([row["x"] for row in rows], [row["y"] for row in rows])

    return epoch


USES = ("torch", "datasets")
ARROW = {"environment": "peers", "writer": "arrow", "imports": USES}
WRITERS = (
    Writer(
        name="arrow", environment="peers", images=write_images,
        records=write_records, imports=USES, note="HF datasets",
    ),
)  # fmt: skip
ADAPTERS = (
    Adapter(
        name="HF datasets, 2 workers", case="jpeg", start=image_batches, **{**ARROW, "imports": (*PIL_IMPORTS, *USES)}
    ),
    Adapter(name="HF datasets, batched", case="blobs", start=blobs, **ARROW),
    Adapter(name="HF datasets, batched", case="records", start=record_batches, **ARROW),
    Adapter(name="HF datasets, one by one", case="records", start=record_items, **ARROW),
)
