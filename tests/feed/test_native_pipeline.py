"""The native pipeline makes the batches that its Python twin makes, whatever the images are."""

import io
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.feed.image_packs import write_images
from tests.native.test_jpeg import encoded, picture
from topout.feed.augment import IMAGENET_MEAN, IMAGENET_STD, Normalize, RandomResizedCrop, eval_images, train_images
from topout.feed.loader import Loader
from topout.packs.damage import DamagedSample
from topout.packs.fields import Field
from topout.packs.packing.writer import PackWriter

NUM_SAMPLES = 60


def image_of(number):
    """Most are ordinary; every tenth is one that the library leaves to Pillow."""
    image = picture(40 + 7 * (number % 11), 30 + 5 * (number % 13), number)
    if number % 10 == 3:
        return encoded(image, progressive=True)
    if number % 10 == 7:
        return encoded(image.convert("CMYK"))
    return encoded(image.convert("L") if number % 10 == 5 else image, quality=85)


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    path = tmp_path_factory.mktemp("packs") / "images"
    with PackWriter(path, fields=[Field(name="image", kind="jpeg"), Field(name="label", kind="int")]) as writer:
        for number in range(NUM_SAMPLES):
            writer.add(f"{number}.jpg", {"image": image_of(number), "label": number})
    return path


def batches(path, monkeypatch, pipeline, **options):
    if pipeline == "python":
        monkeypatch.setenv("TOPOUT_FEED_PIPELINE", "python")
    else:
        monkeypatch.delenv("TOPOUT_FEED_PIPELINE", raising=False)
    with Loader(path, 16, last="exact", seed=5, **options) as loader:
        return [(images.clone(), labels.clone()) for _ in range(2) for images, labels in loader]


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16"])
@pytest.mark.parametrize("transform", [train_images(48), eval_images(40, 32)], ids=["train", "eval"])
def test_batches_are_those_of_the_twin(pack, monkeypatch, transform, dtype, channels_last):
    options = {"transform": transform, "dtype": dtype, "channels_last": channels_last, "num_threads": 2}
    native = batches(pack, monkeypatch, "native", **options)
    twin = batches(pack, monkeypatch, "python", **options)
    assert len(native) == len(twin) == 8
    for (images, labels), (expected, expected_labels) in zip(native, twin, strict=True):
        assert images.shape == expected.shape and images.stride() == expected.stride()
        assert (images == expected).all()
        assert (labels == expected_labels).all()


@pytest.mark.parametrize(("size", "ratio"), [((1, 40), (3.0, 4.0)), ((40, 1), (0.2, 0.3))])
def test_lines_of_pixels_are_cropped_as_the_twin_does(tmp_path, monkeypatch, size, ratio):
    with PackWriter(
        tmp_path / "p", fields=[Field(name="image", kind="jpeg"), Field(name="label", kind="int")]
    ) as writer:
        for number in range(8):
            writer.add(f"{number}.jpg", {"image": encoded(picture(*size, number)), "label": number})
    transform = [RandomResizedCrop(8, ratio=ratio)]
    native = batches(tmp_path / "p", monkeypatch, "native", transform=transform, dtype="uint8")
    twin = batches(tmp_path / "p", monkeypatch, "python", transform=transform, dtype="uint8")
    for (images, labels), (expected, expected_labels) in zip(native, twin, strict=True):
        assert (images == expected).all() and (labels == expected_labels).all()


def test_normalised_values_are_those_of_the_formula(pack, monkeypatch):
    steps = [RandomResizedCrop(32), Normalize(IMAGENET_MEAN, IMAGENET_STD)]
    levels = batches(pack, monkeypatch, "native", transform=steps, dtype="uint8")
    values = batches(pack, monkeypatch, "native", transform=steps, dtype="float32")
    mean, std = (np.array(part, np.float32)[:, None, None] for part in (IMAGENET_MEAN, IMAGENET_STD))
    for (plain, _), (normalised, _) in zip(levels, values, strict=True):
        expected = (plain.numpy().astype(np.float32) / np.float32(255) - mean) / std
        assert (normalised.numpy() == expected).all()


@pytest.mark.parametrize("num_threads", [1, 3, 8])
def test_the_number_of_threads_changes_nothing(pack, monkeypatch, num_threads):
    one = batches(pack, monkeypatch, "native", transform=train_images(40), num_threads=1)
    many = batches(pack, monkeypatch, "native", transform=train_images(40), num_threads=num_threads)
    for (images, labels), (others, other_labels) in zip(one, many, strict=True):
        assert (images == others).all() and (labels == other_labels).all()


def test_a_flipped_byte_in_a_jpeg_stops_or_is_skipped(tmp_path, monkeypatch):
    path = tmp_path / "images"
    data = [encoded(picture(64, 48, number)) for number in range(32)]
    with PackWriter(path, fields=[Field(name="image", kind="jpeg"), Field(name="label", kind="int")]) as writer:
        for number, jpeg in enumerate(data):
            writer.add(f"{number}.jpg", {"image": jpeg, "label": number})
    shard = path / "shard-00000.bin"
    content = bytearray(shard.read_bytes())
    content[content.index(data[9]) + len(data[9]) // 2] ^= 4
    shard.write_bytes(content)
    with pytest.raises(DamagedSample, match="Sample 9"):
        batches(path, monkeypatch, "native", transform=train_images(32))
    with Loader(path, 8, transform=train_images(32), on_damage="skip") as loader:
        labels = [int(label) for _, batch in loader for label in batch]
        assert len(labels) == 32 and 9 not in labels
        assert loader.counters()["skipped"] == 1


CUT = """
import os, sys
from topout.feed.augment import train_images
from topout.feed.loader import Loader

path = sys.argv[1]
shard = os.path.join(path, "shard-00000.bin")
with Loader(path, 8, transform=train_images(32), on_damage="skip", shuffle=False, last="exact") as loader:
    assert [int(label) for _, batch in loader for label in batch] == list(range(32))
    loader.packs.packs[0].sample(0)
    os.truncate(shard, int(loader.packs.packs[0].index["offset"][16]))
    labels = [int(label) for _, batch in loader for label in batch]
    # the next that are whole come in their place, from the beginning again
    assert labels[:16] == list(range(16)) and set(labels[16:]) == {0}, labels
"""


@pytest.mark.parametrize("pipeline", ["native", "python"])
def test_a_shard_that_is_cut_short_while_it_is_read_is_skipped(tmp_path, pipeline):
    path = tmp_path / "images"
    with PackWriter(path, fields=[Field(name="image", kind="jpeg"), Field(name="label", kind="int")]) as writer:
        for number in range(32):
            writer.add(f"{number}.jpg", {"image": encoded(picture(256, 192, number)), "label": number})
    environment = {**os.environ, "TOPOUT_FEED_PIPELINE": pipeline}
    if pipeline == "native":
        del environment["TOPOUT_FEED_PIPELINE"]
    done = subprocess.run(
        [sys.executable, "-c", CUT, path], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


LIMITED = """
import resource, sys
from topout.feed.augment import train_images
from topout.feed.loader import Loader

with Loader(sys.argv[1], 8, transform=train_images(32)) as loader:
    list(loader)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))
with Loader(sys.argv[2], 8, transform=train_images(32), last="exact") as loader:
    assert sum(len(labels) for _, labels in loader) == 80
"""


def test_more_shards_than_files_may_be_open_are_no_obstacle(tmp_path):
    few, many = write_images(tmp_path / "few", 8), write_images(tmp_path / "many", 80, shard_bytes=1)
    assert len(list(many.glob("shard-*.bin"))) == 80
    done = subprocess.run([sys.executable, "-c", LIMITED, few, many], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_image_that_no_decoder_takes_is_named(tmp_path, monkeypatch):
    path = tmp_path / "images"
    file = io.BytesIO(encoded(picture(64, 48, 1)))
    with PackWriter(path, fields=[Field(name="image", kind="jpeg"), Field(name="label", kind="int")]) as writer:
        writer.add("whole.jpg", {"image": file.getvalue(), "label": 0})
        writer.add("cut.jpg", {"image": file.getvalue()[:300], "label": 1})
    with pytest.raises(Exception, match=r"cut\.jpg"):
        batches(path, monkeypatch, "native", transform=train_images(32), shuffle=False)


def test_a_closed_loader_keeps_no_shard_open(pack):
    """Although somebody holds its iterator: a folder with open files cannot be removed everywhere."""
    loader = Loader(pack, 4, seed=1, transform=train_images(16))
    iterator = iter(loader)
    next(iterator)
    assert open_below(pack)
    loader.close()
    assert open_below(pack) == []


def open_below(path):
    links = [os.path.realpath(entry.path) for entry in os.scandir("/proc/self/fd")]
    return [link for link in links if link.startswith(f"{os.path.realpath(path)}/") and "shard" in link]
