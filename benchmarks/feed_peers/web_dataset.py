"""WebDataset: tar shards. Not a global shuffle (shards, then a buffer), so its task is the lighter one."""

from pathlib import Path

from feed_peers.adapter import Adapter, BatchBuffer, Writer, grouped, tensors
from feed_peers.pipeline import PIL_IMPORTS, PilTransform, first_of

IMAGES_PER_SHARD, RECORDS_PER_SHARD = 256, 10_000


def write_images(images, destination):
    from webdataset import ShardWriter

    destination.mkdir(parents=True)
    with ShardWriter(f"{destination}/%05d.tar", maxcount=IMAGES_PER_SHARD, verbose=0) as writer:
        for number, (path, label) in enumerate(zip(images.paths, images.labels, strict=True)):
            writer.write({"__key__": f"{number:08d}", "jpg": Path(path).read_bytes(), "cls": label})


def write_records(records, destination):
    from webdataset import ShardWriter

    destination.mkdir(parents=True)
    with ShardWriter(f"{destination}/%05d.tar", maxcount=RECORDS_PER_SHARD, verbose=0) as writer:
        for number, (row, label) in enumerate(records.rows()):
            writer.write({"__key__": f"{number:08d}", "bin": row, "cls": label})


def shards(work):
    return sorted(map(str, work.store.glob("*.tar")))


def image_batches(work):
    from webdataset import WebDataset, WebLoader

    dataset = WebDataset(shards(work), shardshuffle=100, empty_check=False).shuffle(1000)
    dataset = dataset.to_tuple("jpg", "cls").map_tuple(PilTransform(), int).batched(work.batch_size)
    return first_of(WebLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True))


def blobs(work):
    from webdataset import WebDataset

    buffer = BatchBuffer(work.batch_size)
    dataset = WebDataset(shards(work), shardshuffle=100, empty_check=False).shuffle(1000)

    def epoch(_):
        for group in grouped((sample["jpg"] for sample in dataset), work.batch_size):
            yield buffer.fill(group)

    return epoch


def record_batches(work):
    from webdataset import WebDataset

    dataset = WebDataset(shards(work), shardshuffle=100, empty_check=False).shuffle(1000)

    def epoch(_):
        for group in grouped(dataset, work.batch_size):
            yield tensors([sample["bin"] for sample in group], [int(sample["cls"]) for sample in group])

    return epoch


NOTE = "shuffles shards and a buffer of 1,000"
USES = ("torch", "webdataset")
WRITERS = (
    Writer(name="webdataset", environment="peers", images=write_images, records=write_records, imports=USES),
)  # fmt: skip
ADAPTERS = (
    Adapter(
        name="WebDataset, 2 workers", case="jpeg", environment="peers", writer="webdataset", start=image_batches,
        imports=(*PIL_IMPORTS, "webdataset"), note=NOTE,
    ),
    Adapter(
        name="WebDataset", case="blobs", environment="peers", writer="webdataset", start=blobs, imports=USES, note=NOTE
    ),
    Adapter(
        name="WebDataset", case="records", environment="peers", writer="webdataset", start=record_batches,
        imports=USES, note=NOTE,
    ),
)  # fmt: skip
