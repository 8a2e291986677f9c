"""Parsers written by hand meet bytes nobody meant: explained each time, no other exception, no large allocation."""

import json
import random
import resource
import shutil
import tarfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.packs.sources.reading import jpeg, make_pack
from tests.packs.sources.test_tar import write_tar
from topout.packs.fields import Field
from topout.packs.foreign.example import ExampleError, first_name, read_example, write_example
from topout.packs.foreign.npy import read_npy, write_npy
from topout.packs.foreign.tfrecord_frames import frame
from topout.packs.sources import BadEntry, SourceOptions
from topout.packs.targets import unpack
from topout.schema.errors import TopoutError
from topout.schema.plugin import load_plugin

MDS = Path(__file__).parent / "mds_sample"
SOURCES = {name: load_plugin("topout.packs.sources", name) for name in ("mds", "tar", "tfrecord")}
NUM_TRIALS = 150
MOST_BYTES = 64 << 20
EXAMPLE = write_example(
    {
        "__key__": [b"name"],
        "image": [b"\xff\xd8\xff123"],
        "n": np.array([1, -1, 2**62], np.int64),
        "f": np.array([0.5, 1], np.float32),
    }
)


def read_or_refuse(path: Path, name: str) -> None:
    """Samples, bad entries and TopoutErrors are all fine; anything else comes out of here."""
    tracemalloc.start()
    try:
        listing = SOURCES[name].open_listing(path, SourceOptions())
        found = list(listing.read_range(0, len(listing.names)))
        assert len(found) == len(listing.names) == len(listing.sizes)
        assert all(isinstance(entry, dict | BadEntry) for entry in found)
    except TopoutError:
        pass
    finally:
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak_bytes < MOST_BYTES


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Cut, overwritten, flipped, or with a piece of it doubled."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(out)) if out else 0
        kind = rng.randrange(4)
        if kind == 0:
            del out[place:]
        elif kind == 1 and out:
            out[place] ^= 1 << rng.randrange(8)
        elif kind == 2:
            out[place : place + 8] = rng.randbytes(8)
        else:
            out[place:place] = out[place : place + rng.randrange(600)]
    return bytes(out)


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_an_example_or_none(data):
    try:
        read_example(data)
    except ExampleError:
        pass
    first_name(data, "__key__")


def test_every_prefix_and_every_flip_of_an_example_is_an_example_or_none():
    flips = (
        EXAMPLE[:n] + bytes([EXAMPLE[n] ^ 1 << bit]) + EXAMPLE[n + 1 :] for n in range(len(EXAMPLE)) for bit in range(8)
    )
    for data in [*(EXAMPLE[:length] for length in range(len(EXAMPLE))), *flips]:
        try:
            read_example(data)
        except ExampleError:
            pass
        first_name(data, "__key__")


@given(
    st.dictionaries(
        st.text(max_size=8),
        st.one_of(
            st.lists(st.binary(max_size=20), max_size=4),
            st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6).map(lambda v: np.array(v, np.int64)),
            st.lists(st.floats(width=32), max_size=6).map(lambda v: np.array(v, np.float32)),
        ),
        max_size=5,
    )
)
@settings(max_examples=100, deadline=None)
def test_an_example_reads_back_as_written(features):
    found = read_example(write_example(features))
    assert found.keys() == features.keys()
    for name, feature in features.items():
        assert np.array_equal(
            found[name], feature, equal_nan=isinstance(feature, np.ndarray) and feature.dtype.kind == "f"
        )


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_an_array_or_none(data):
    for candidate in (data, write_npy(np.arange(6))[:20] + data):
        try:
            read_npy(candidate)
        except ValueError:
            pass


def test_damaged_tfrecords_are_explained(tmp_path):
    rng = random.Random(1)
    whole = b"".join(frame(record) for record in [EXAMPLE] * 6)
    for _ in range(NUM_TRIALS):
        (tmp_path / "a.tfrecord").write_bytes(damaged(whole, rng))
        read_or_refuse(tmp_path / "a.tfrecord", "tfrecord")


def test_examples_damaged_within_valid_frames_are_explained(tmp_path):
    """Checksums hold, so that the reader of messages is reached."""
    rng = random.Random(2)
    for _ in range(NUM_TRIALS):
        records = [damaged(EXAMPLE, rng) if rng.random() < 0.5 else EXAMPLE for _ in range(6)]
        (tmp_path / "a.tfrecord").write_bytes(b"".join(frame(record) for record in records))
        read_or_refuse(tmp_path / "a.tfrecord", "tfrecord")


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_damaged_tars_are_explained(tmp_path, format):
    rng = random.Random(3)
    members = {f"{'d/' * 60}{n}é.{e}": data for n in range(3) for e, data in (("jpg", jpeg(n)), ("cls", b"1"))}
    whole = write_tar(tmp_path / "a.tar", members, format).read_bytes()
    for _ in range(NUM_TRIALS):
        (tmp_path / "a.tar").write_bytes(damaged(whole, rng))
        read_or_refuse(tmp_path / "a.tar", "tar")


def test_damaged_heads_of_tars_with_right_checksums_are_explained(tmp_path):
    """Sizes that are negative, huge or not numbers at all, behind a checksum that holds."""
    rng = random.Random(4)
    whole = write_tar(tmp_path / "a.tar", {f"{n}.bin": bytes([n]) * 700 for n in range(3)}).read_bytes()
    for _ in range(NUM_TRIALS):
        data = bytearray(whole)
        head = 1536 * rng.randrange(3)
        first = rng.choice([0, 100, 108, 116, 124, 136, 156, 157, 257, 329, 345, 386, 482])
        data[head + first : head + first + 12] = rng.choice(
            [
                rng.randbytes(12),
                b"\xff" * 12,
                (-1536).to_bytes(12, "big", signed=True),
                b"\x80" + bytes(10) + b"\xff",
                b"7" * 11 + b"\0",
                b"xLKgS" + b"0" * 7,
            ]
        )
        data[head + 148 : head + 156] = b" " * 8
        data[head + 148 : head + 156] = b"%06o\0 " % sum(data[head : head + 512])
        (tmp_path / "a.tar").write_bytes(data)
        read_or_refuse(tmp_path / "a.tar", "tar")


@pytest.mark.parametrize("kind", ["plain", "compressed", "gzipped"])
def test_damaged_mds_is_explained(tmp_path, kind):
    rng = random.Random(5)
    for _ in range(NUM_TRIALS // 3):
        shutil.copytree(MDS / kind, tmp_path / "m", dirs_exist_ok=True)
        path = tmp_path / "m" / rng.choice(sorted(entry.name for entry in (MDS / kind).iterdir()))
        path.write_bytes(damaged(path.read_bytes(), rng))
        read_or_refuse(tmp_path / "m", "mds")


def test_samples_of_mds_damaged_behind_a_valid_index_are_explained(tmp_path):
    """Hashes are taken out and sizes put right, so that the reader of samples is reached."""
    rng = random.Random(6)
    shutil.copytree(MDS / "plain", tmp_path / "m")
    index = json.loads((MDS / "plain" / "index.json").read_text())
    for _ in range(NUM_TRIALS):
        for shard in index["shards"]:
            raw = damaged((MDS / "plain" / shard["raw_data"]["basename"]).read_bytes(), rng)
            (tmp_path / "m" / shard["raw_data"]["basename"]).write_bytes(raw)
            shard["raw_data"] |= {"bytes": len(raw), "hashes": {}}
        (tmp_path / "m" / "index.json").write_text(json.dumps(index))
        read_or_refuse(tmp_path / "m", "mds")


@pytest.mark.parametrize("target, source", [("webdataset", "tar"), ("tfrecord", "tfrecord")])
def test_damage_to_what_topout_wrote_is_explained(tmp_path, target, source):
    rng = random.Random(7)
    fields = [Field(name="image", kind="jpeg"), Field(name="m", kind="json"), Field(name="x", kind="array")]
    samples = {f"{n}.jpg": {"image": jpeg(n), "m": [n], "x": np.arange(n)} for n in range(3)}
    with make_pack(tmp_path / "pack", fields, samples) as pack:
        unpack(pack, tmp_path / "whole", target)
    for _ in range(NUM_TRIALS // 2):
        shutil.copytree(tmp_path / "whole", tmp_path / "out", dirs_exist_ok=True)
        path = rng.choice(sorted((tmp_path / "out").iterdir()))
        path.write_bytes(damaged(path.read_bytes(), rng))
        read_or_refuse(tmp_path / "out", source)


def test_this_process_never_grew_by_a_damaged_length():
    """tracemalloc sees Python's allocations; the high-water mark sees all others."""
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20
