"""Folders that the real MosaicML streaming wrote (see make_mds_sample.py), and what damage does to them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.packs.sources.reading import is_same, read_all, reasons
from topout.packs.packing.options import PackOptions
from topout.packs.packing.packer import pack
from topout.packs.sources import choose_source
from topout.schema.errors import TopoutError

HERE = Path(__file__).parent / "mds_sample"


def copy(tmp_path: Path, kind: str) -> Path:
    shutil.copytree(HERE / kind, tmp_path / kind)
    return tmp_path / kind


def edit_index(folder: Path, change) -> None:
    index = json.loads((folder / "index.json").read_text())
    change(index)
    (folder / "index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("kind", ["plain", "compressed", "gzipped"])
def test_every_encoding_gives_the_value_that_was_written(kind):
    assert choose_source(HERE / kind) == "mds"
    listing, found = read_all(HERE / kind)
    assert list(listing.names)[5:7] == ["shard.00000/00000005", "shard.00001/00000000"]
    third = found[3]
    assert third.pop("image").startswith(b"\xff\xd8\xff")
    assert third.pop("mask").startswith(b"\x89PNG")
    assert is_same(
        third,
        {
            "array": np.array([[0], [1], [2], [3]], np.uint16),
            "blob": b"\0\1\2",
            "count": -3,
            "digits": 3,
            "exact": 0.3,
            "fixed": np.full((2, 3), 0.75, np.float32),
            "meta": {"number": 3, "list": [None, True]},
            "share": 0.375,
            "small": 3,
            "text": "Nº 3",
            "typed": np.array([-3, -2, -1, 0], np.int16),
        },
    )
    assert [sample["count"] for sample in found] == [0, -1, -2, -3, -4, -5, -6, -7, -8, -9]


def test_kinds_of_fields_follow_the_encodings():
    listing, _ = read_all(HERE / "plain", columns=("fixed", "array", "image", "share", "small"))
    assert [(field.name, field.kind, field.shape, field.dtype) for field in listing.fields] == [
        ("array", "array", None, None),
        ("fixed", "array", (2, 3), "<f4"),
        ("image", "jpeg", None, None),
        ("share", "float", None, None),
        ("small", "int", None, None),
    ]


def test_a_range_across_shards_is_the_slice_of_the_whole():
    listing, found = read_all(HERE / "compressed")
    assert is_same(dict(enumerate(listing.read_range(4, 8))), dict(enumerate(found[4:8])))


def test_a_missing_shard_costs_its_own_samples_only(tmp_path):
    folder = copy(tmp_path, "plain")
    (folder / "shard.00000.mds").unlink()
    _, found = read_all(folder)
    assert reasons(found) == ["shard shard.00000.mds cannot be read: it is missing"] * 6 + [None] * 4


def test_a_flipped_byte_is_found_by_the_hash(tmp_path):
    folder = copy(tmp_path, "plain")
    data = bytearray((folder / "shard.00001.mds").read_bytes())
    data[-1] ^= 1
    (folder / "shard.00001.mds").write_bytes(data)
    _, found = read_all(folder)
    assert reasons(found)[5:7] == [None, "shard shard.00001.mds cannot be read: its bytes do not match their sha1"]


@pytest.mark.parametrize("kind", ["compressed", "gzipped"])
def test_a_flipped_byte_in_a_compressed_shard_is_found(tmp_path, kind):
    folder = copy(tmp_path, kind)
    shard = next(folder.glob("shard.00000.mds.*"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    _, found = read_all(folder)
    assert all("cannot be read" in str(reason) for reason in reasons(found)[:6])
    assert reasons(found)[6:] == [None] * 4


def test_a_truncated_shard_is_named(tmp_path):
    folder = copy(tmp_path, "plain")
    data = (folder / "shard.00000.mds").read_bytes()
    (folder / "shard.00000.mds").write_bytes(data[:3000])
    _, found = read_all(folder)
    assert reasons(found)[0] == (f"shard shard.00000.mds cannot be read: it has 3000 bytes, its index says {len(data)}")


def test_a_decompression_never_gives_more_than_the_index_promises(tmp_path):
    import zstandard

    folder = copy(tmp_path, "compressed")
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 30))
    (folder / "shard.00000.mds.zstd").write_bytes(bomb)

    def promise(index: dict) -> None:
        index["shards"][0]["zip_data"] = {"basename": "shard.00000.mds.zstd", "bytes": len(bomb), "hashes": {}}

    edit_index(folder, promise)
    _, found = read_all(folder)
    assert "decompressed it has 5585 bytes, its index says 5584" in str(reasons(found)[0])


@pytest.mark.parametrize("basename", ["/etc/passwd", "../secret", "a/../../b"])
def test_an_index_cannot_lead_out_of_its_folder(tmp_path, basename):
    folder = copy(tmp_path, "plain")
    edit_index(folder, lambda index: index["shards"][0]["raw_data"].update(basename=basename))
    with pytest.raises(TopoutError, match="cannot be read as MDS") as raised:
        read_all(folder)
    assert "is not a file of the folder" in raised.value.why


def test_pickled_columns_are_refused(tmp_path):
    folder = copy(tmp_path, "plain")
    for number in (0, 1):
        edit_index(folder, lambda index, n=number: index["shards"][n]["column_encodings"].__setitem__(0, "pkl"))
    with pytest.raises(TopoutError) as raised:
        read_all(folder)
    assert "unpickling" in raised.value.why


def test_a_number_beyond_64_bits_is_a_bad_entry_not_an_error(tmp_path):
    listing, found = read_all(HERE / "plain")
    assert found[9]["digits"] == 10**20  # the packer refuses it by name
    with pytest.raises(TopoutError, match=r"shard\.00001/00000003"):
        pack(listing, ("mds", HERE / "plain"), tmp_path / "pack", PackOptions())
