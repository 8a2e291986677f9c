"""The bytes of a pack are those of docs/pack.md: a reader written from that page alone reads what topout wrote."""

import hashlib
import json
import struct

import google_crc32c
import numpy as np
import pytest

from tests.packs.packs import FIELDS, sample, small_pack
from topout.packs.checksum import _of_wheel, crc32c
from topout.packs.fields import Field, checked_fields
from topout.packs.layout import (
    FileKind,
    Header,
    MisshapenError,
    Trailer,
    decode_header,
    decode_trailer,
    row_dtype,
)  # fmt: skip
from topout.packs.names import decode_names, encode_names, sorted_order
from topout.schema.errors import TopoutError


def plain_crc(data: bytes) -> int:
    """Bit by bit, from the polynomial alone."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize("function", [crc32c, _of_wheel])
def test_the_checksum_is_crc32c_and_can_be_continued(function):
    assert function(b"123456789") == 0xE3069283 == plain_crc(b"123456789")
    data = bytes(range(256)) * 17
    assert function(memoryview(data)[5:], function(data[:5])) == plain_crc(data)
    assert function(bytearray(b"")) == 0
    assert crc32c(b"", 77) == 77


def test_a_header_is_the_documented_bytes():
    data = Header(kind=FileKind.SHARD, pack_id=bytes(range(16)), number=5).encode()
    assert len(data) == 4096
    assert data[:8] == b"TOPOUTPK"
    assert struct.unpack_from("<II", data, 8) == (1, 3)
    assert data[16:32] == bytes(range(16))
    assert struct.unpack_from("<Q", data, 32) == (5,)
    assert data[40:4092] == bytes(4052)
    assert struct.unpack_from("<I", data, 4092)[0] == google_crc32c.value(data[:4092])
    assert decode_header(data) == Header(kind=FileKind.SHARD, pack_id=bytes(range(16)), number=5)


def test_a_trailer_is_the_documented_bytes():
    trailer = Trailer(num_rows=2, footer_offset=5000, footer_bytes=48, footer_crc=11, data_crc=12)
    data = trailer.encode()
    assert len(data) == 64
    assert struct.unpack_from("<8sQQQII", data) == (b"TOPOUTPK", 2, 5000, 48, 11, 12)
    assert data[40:60] == bytes(20)
    assert decode_trailer(data) == trailer


@pytest.mark.parametrize("bit", range(0, 4096 * 8, 331))
def test_a_flipped_bit_in_a_header_is_seen(bit):
    data = bytearray(Header(kind=FileKind.INDEX, pack_id=bytes(16), number=0).encode())
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(MisshapenError):
        decode_header(bytes(data))


def test_a_later_version_is_named():
    head = bytearray(Header(kind=FileKind.INDEX, pack_id=bytes(16), number=0).encode()[:4092])
    head[8] = 2
    with pytest.raises(MisshapenError, match="version 2, this reader knows 1"):
        decode_header(bytes(head) + struct.pack("<I", google_crc32c.value(bytes(head))))


def test_a_row_is_24_bytes_and_8_a_scalar():
    assert row_dtype([Field(name="data", kind="bytes")]).itemsize == 24
    rows = row_dtype(
        [Field(name="y", kind="int"), Field(name="data", kind="bytes"), Field(name="length", kind="float")]
    )
    assert rows.itemsize == 40
    assert [rows.fields[name][1] for name in rows.names] == [0, 4, 8, 16, 20, 24, 32]
    assert rows.names[-2:] == ("y", "length_")


def test_names_are_offsets_then_bytes():
    block = encode_names([b"ab", b"", b"c\nd"])
    assert block == struct.pack("<4Q", 0, 2, 2, 5) + b"abc\nd" + bytes(3)
    assert decode_names(block, 3) == [b"ab", b"", b"c\nd"]
    assert sorted_order([b"b", b"a", b"ab"]).tolist() == [1, 2, 0]


def test_names_whose_offsets_run_backwards_are_refused():
    with pytest.raises(ValueError, match="offsets"):
        decode_names(struct.pack("<3Q", 0, 5, 2) + b"abcdefgh", 2)


def read_as_a_stranger(folder):
    """What docs/pack.md says, with nothing of topout: (name, row, record) of every sample."""
    text = (folder / "pack.json").read_bytes()
    body = text[: text.rindex(b',\n "digest"')]
    manifest = json.loads(text)
    assert manifest["digest"] == hashlib.sha256(body).hexdigest()
    scalars = [field for field in manifest["fields"] if field["kind"] in ("int", "float")]
    row_bytes = 24 + 8 * len(scalars)
    index = (folder / "index.bin").read_bytes()
    names = (folder / "names.bin").read_bytes()
    num_samples = manifest["num_samples"]
    for number in range(num_samples):
        row = index[4096 + row_bytes * number : 4096 + row_bytes * (number + 1)]
        shard, length, offset, crc, _flags = struct.unpack_from("<IIQII", row)
        record = (folder / manifest["shards"][shard]["file"]).read_bytes()[offset : offset + length]
        assert crc == google_crc32c.value(record + row[:16] + row[24:] + struct.pack("<Q", number))
        start, stop = struct.unpack_from("<2Q", names, 4096 + 8 * number)
        text_start = 4096 + 8 * (num_samples + 1)
        values = struct.unpack_from("<" + "".join("q" if f["kind"] == "int" else "d" for f in scalars), row, 24)
        yield names[text_start + start : text_start + stop].decode(), values, record


def test_a_stranger_reads_the_same_samples(tmp_path):
    small_pack(tmp_path / "pack", num_samples=20)
    for number, (name, values, record) in enumerate(read_as_a_stranger(tmp_path / "pack")):
        expected = sample(number)
        assert name == f"sample-{number}"
        assert values == (expected["label"], expected["weight"])
        [caption_bytes] = struct.unpack_from("<I", record)
        assert record[4:10] == expected["pixels"].tobytes()
        assert record[10:] == expected["caption"].encode()
        assert caption_bytes == len(record) - 10
    assert number == 19


def test_every_shard_repeats_its_rows_and_names(tmp_path):
    manifest = small_pack(tmp_path / "pack")
    index = (tmp_path / "pack" / "index.bin").read_bytes()[4096:-64]
    rows = b""
    for number, entry in enumerate(manifest.shards):
        data = (tmp_path / "pack" / entry.file).read_bytes()
        num_rows, offset, length, footer_crc, data_crc = struct.unpack_from("<QQQII", data, len(data) - 56)
        assert struct.unpack_from("<Q", data, 32) == (number,)
        assert google_crc32c.value(data[:-64]) == data_crc == entry.data_crc
        footer = data[offset : offset + length]
        assert offset + length == len(data) - 64
        assert google_crc32c.value(footer) == footer_crc
        rows += footer[: num_rows * 40]
        assert decode_names(footer[num_rows * 40 :], num_rows)[0].startswith(b"sample-")
    assert rows == index
    assert len(manifest.shards) > 2


def test_item_types_are_stored_little_endian():
    [field] = checked_fields([Field(name="x", kind="array", shape=(2,), dtype=">i4")])
    assert field.dtype == "<i4"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ([], "at least one field"),
        ([Field(name="a", kind="int"), Field(name="a", kind="int")], "cannot be told apart"),
        ([Field(name="a", kind="picture")], "cannot be stored as picture"),
        ([Field(name="a", kind="jpeg", codec="zstd")], "cannot be stored as jpeg with zstd"),
        ([Field(name="a", kind="array", dtype="object")], "cannot be stored as array"),
        ([Field(name="a", kind="array", dtype="(1,2f8")], "cannot be stored as array"),
        ([Field(name="a", kind="array", dtype="<f4", shape=(3, -1))], "cannot be stored as array"),
        ([Field(name="a", kind="array", dtype="<f4", shape=(1 << 30,))], "sample with a is too long"),
        ([Field(name=name, kind="array", dtype="|u1", shape=(3 << 30,)) for name in "ab"], "with a, b is too long"),
        ([Field(name="a", kind="array", dtype="<f4", shape=(1 << 32, 1 << 30))], "sample with a is too long"),
    ],
)
def test_fields_that_a_pack_cannot_hold_are_refused(fields, problem):
    with pytest.raises(TopoutError, match=problem):
        checked_fields(fields)


def test_the_fields_of_these_tests_are_of_every_place():
    assert [field.is_fixed for field in FIELDS] == [True, False, False, False]
    assert [field.is_scalar for field in FIELDS] == [False, True, True, False]
    assert [field.is_variable for field in FIELDS] == [False, False, False, True]
    assert FIELDS[0].num_bytes == 6
    assert np.dtype(FIELDS[0].dtype) == np.uint8
