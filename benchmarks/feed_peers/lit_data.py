"""litdata: optimised chunks, streamed from local disk. Shuffles chunks, and samples within them."""

import functools
from pathlib import Path

from feed_peers.adapter import Adapter, BatchBuffer, Writer, grouped, tensors
from feed_peers.pipeline import PIL_IMPORTS, PilTransform, first_of


def image_row(paths, labels, number):
    return {"x": Path(paths[number]).read_bytes(), "y": labels[number]}


def record_row(x, y, number):
    return {"x": x[number].tobytes(), "y": int(y[number])}


def optimise(row, count, destination):
    import litdata

    litdata.optimize(
        row, list(range(count)), str(destination), num_workers=1, chunk_bytes="64MB", start_method="fork", verbose=False
    )


def write_images(images, destination):
    paths = images.paths
    optimise(functools.partial(image_row, paths, images.labels), len(paths), destination)


def write_records(records, destination):
    optimise(functools.partial(record_row, records.x, records.y), records.count, destination)


def image_batches(work):
    import litdata

    transform = PilTransform()

    class Decoded(litdata.StreamingDataset):
        def __getitem__(self, number):
            sample = super().__getitem__(number)
            return transform(sample["x"]), sample["y"]

    dataset = Decoded(str(work.store), shuffle=True)
    loader = litdata.StreamingDataLoader(dataset, batch_size=work.batch_size, num_workers=2, persistent_workers=True)
    return first_of(loader)


def blobs(work):
    import litdata

    dataset = litdata.StreamingDataset(str(work.store), shuffle=True)
    buffer = BatchBuffer(work.batch_size)

    def epoch(_):
        for group in grouped((sample["x"] for sample in dataset), work.batch_size):
            yield buffer.fill(group)

    return epoch


def record_batches(work):
    import litdata

    dataset = litdata.StreamingDataset(str(work.store), shuffle=True)

    def epoch(_):
        for group in grouped(dataset, work.batch_size):
            yield tensors([sample["x"] for sample in group], [sample["y"] for sample in group])

    return epoch


NOTE = "shuffles chunks, then within a chunk"
USES = ("torch", "litdata")
LIT = {"environment": "peers", "writer": "litdata", "imports": USES, "note": NOTE}
WRITERS = (
    Writer(name="litdata", environment="peers", images=write_images, records=write_records, imports=USES),
)  # fmt: skip
ADAPTERS = (
    Adapter(name="litdata, 2 workers", case="jpeg", start=image_batches, **{**LIT, "imports": (*PIL_IMPORTS, *USES)}),
    Adapter(name="litdata", case="blobs", start=blobs, **LIT),
    Adapter(name="litdata", case="records", start=record_batches, **LIT),
)
