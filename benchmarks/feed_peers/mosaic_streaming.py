"""MosaicML streaming: MDS shards, read from local disk. Has an environment of its own, for it wants an older NumPy."""

from pathlib import Path

from feed_peers.adapter import Adapter, BatchBuffer, Writer, grouped, tensors
from feed_peers.pipeline import PIL_IMPORTS, PilTransform, first_of, import_torchvision

COLUMNS = {"x": "bytes", "y": "int"}


def write_images(images, destination):
    import_torchvision()  # `import streaming` brings torchvision in, and dies without its operators
    from streaming import MDSWriter

    with MDSWriter(out=str(destination), columns=COLUMNS, size_limit="64mb") as writer:
        for path, label in zip(images.paths, images.labels, strict=True):
            writer.write({"x": Path(path).read_bytes(), "y": label})


def write_records(records, destination):
    import_torchvision()
    from streaming import MDSWriter

    with MDSWriter(out=str(destination), columns=COLUMNS, size_limit="64mb") as writer:
        for row, label in records.rows():
            writer.write({"x": row, "y": label})


def open_dataset(work, kind=None):
    import_torchvision()
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()  # what a killed run left stops the next one
    return (kind or StreamingDataset)(
        local=str(work.store), shuffle=True, batch_size=work.batch_size, num_canonical_nodes=1
    )


def image_batches(work):
    import_torchvision()
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    transform = PilTransform()

    class Decoded(StreamingDataset):
        def __getitem__(self, number):
            sample = super().__getitem__(number)
            return transform(sample["x"]), sample["y"]

    dataset = open_dataset(work, Decoded)
    return first_of(DataLoader(dataset, work.batch_size, num_workers=2, persistent_workers=True))


def blobs(work):
    dataset = open_dataset(work)
    buffer = BatchBuffer(work.batch_size)

    def epoch(_):
        for group in grouped((sample["x"] for sample in dataset), work.batch_size):
            yield buffer.fill(group)

    return epoch


def record_batches(work):
    dataset = open_dataset(work)

    def epoch(_):
        for group in grouped(dataset, work.batch_size):
            yield tensors([sample["x"] for sample in group], [sample["y"] for sample in group])

    return epoch


USES = (*PIL_IMPORTS, "streaming")  # it imports torchvision in any case
MDS = {"environment": "streaming", "writer": "mds", "imports": USES}
WRITERS = (
    Writer(
        name="mds", environment="streaming", images=write_images,
        records=write_records, imports=USES, note="MosaicML streaming",
    ),
)  # fmt: skip
ADAPTERS = (
    Adapter(name="MosaicML streaming, 2 workers", case="jpeg", start=image_batches, **MDS),
    Adapter(name="MosaicML streaming", case="blobs", start=blobs, **MDS),
    Adapter(name="MosaicML streaming", case="records", start=record_batches, **MDS),
)
