"""topout itself: the Loader for training batches, gather for small records, verified records for blobs.

Every row verifies the checksum of every sample it reads. Runs under the interpreter that runs the benchmark.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np

from feed_peers.adapter import Adapter, BatchBuffer, Writer


def write_images(images, destination):
    """The whole command, start of the interpreter included."""
    command = Path(sys.executable).with_name("topout")
    done = subprocess.run([command, "pack", images.folder, destination], check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"topout pack: {' '.join(done.stderr.split())}")


def write_records(records, destination):
    from topout.packs.fields import Field
    from topout.packs.packing.writer import PackWriter

    shape = (records.record_bytes,)
    fields = (Field(name="x", kind="array", shape=shape, dtype="uint8"), Field(name="y", kind="int"))
    with PackWriter(destination, fields=fields) as writer:
        for number, (row, label) in enumerate(zip(records.x, records.y.tolist(), strict=True)):
            writer.add(f"{number:08d}", {"x": row, "y": label})


def load_names():
    """topout's public names load on first use; here before the clock starts, as the other peers' imports are."""
    import topout
    import topout.feed.augment
    import topout.packs.pack

    assert topout.Loader


def image_batches(work):
    import topout
    from topout.feed.augment import train_images

    loader = topout.Loader(work.store, work.batch_size, transform=train_images(224), dtype="float32", seed=0)

    def epoch(_):
        for batch in loader:
            yield batch["image"] if isinstance(batch, dict) else batch[0]

    return epoch


def blobs(work):
    from topout.packs.pack import open_pack

    pack, buffer = open_pack(work.store), BatchBuffer(work.batch_size)

    def epoch(number):
        for numbers in work.batches(number):
            yield buffer.fill(pack.field_bytes(item, "image") for item in numbers.tolist())

    return epoch


def blobs_at_once(work):
    """A batch's records verified and copied by one native call."""
    from topout.native.bindings import library
    from topout.packs.pack import open_pack
    from topout.packs.pack_view import NativePack

    native, buffer = NativePack(open_pack(work.store), library()), BatchBuffer(work.batch_size)

    def epoch(number):
        for numbers in work.batches(number):
            offsets, status = native.read(numbers, buffer.bytes)
            assert not status.any(), "damaged samples"
            yield len(numbers), int(offsets[-1])

    return epoch


def gathered(work):
    import torch

    from topout.packs.pack import open_pack

    pack = open_pack(work.store)

    def epoch(number):
        for numbers in work.batches(number):
            columns = pack.gather(numbers)
            yield torch.from_numpy(columns["x"]), torch.from_numpy(columns["y"])

    return epoch


def loaded(work):
    import topout

    loader = topout.Loader(work.store, work.batch_size, seed=0)

    def epoch(_):
        for batch in loader:
            yield (batch["x"], batch["y"]) if isinstance(batch, dict) else batch

    return epoch


def forced(jpegs, _boxes):
    """The native path, without a flip; it draws its own windows and says which."""
    from topout.feed.augment import RandomResizedCrop, as_transform
    from topout.feed.native_pipeline import as_structure
    from topout.native.bindings import library

    native = library()
    transform = as_structure(as_transform([RandomResizedCrop(224)]), None, is_channels_last=True)
    pixels, drawn = np.empty((len(jpegs), 224, 224, 3), np.uint8), []
    for key, (data, out) in enumerate(zip(jpegs, pixels, strict=True)):
        status, window = native.image(transform, data, key, out)
        assert status == 0, f"image {key} was not decoded: status {status}"
        drawn.append((window.left, window.top, window.width, window.height))
    return pixels, drawn


OWN = {"environment": "topout", "kind": "topout", "writer": "topout", "note": "verifies checksums"}
LOADER = ("torch", "feed_peers.topout_own:load_names")
WRITERS = (
    Writer(
        name="topout", environment="topout", images=write_images,
        records=write_records, imports=("numpy",), note="the whole command",
    ),
)  # fmt: skip
ADAPTERS = (
    Adapter(
        name="topout Loader", case="jpeg", start=image_batches, forced=forced, imports=LOADER, **OWN
    ),
    Adapter(name="topout Pack.field_bytes", case="blobs", start=blobs, imports=("topout.packs.pack",), **OWN),
    Adapter(name="topout batched read", case="blobs", start=blobs_at_once, imports=("topout.packs.pack_view",), **OWN),
    Adapter(name="topout Pack.gather", case="records", start=gathered, imports=("torch", "topout.packs.pack"), **OWN),
    Adapter(name="topout Loader", case="records", start=loaded, imports=LOADER, **OWN),
)  # fmt: skip
