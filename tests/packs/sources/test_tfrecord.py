"""TFRecord against TensorFlow itself, both ways, and against what cuts and flips do to it."""

import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.packs.sources.reading import is_same, jpeg, read_all, reasons
from topout.packs.foreign.tfrecord_frames import frame
from topout.packs.sources import choose_source
from topout.schema.errors import TopoutError


@pytest.fixture(scope="module")
def tf():
    import tensorflow

    return tensorflow


def example(tf, features: dict) -> bytes:
    made = {}
    for name, values in features.items():
        if values and isinstance(values[0], bytes):
            made[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        elif values and isinstance(values[0], float):
            made[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
        else:
            made[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()


def test_what_tensorflow_writes_is_read(tmp_path, tf):
    for shard in range(2):
        with tf.io.TFRecordWriter(str(tmp_path / f"train.tfrecord-{shard:05d}-of-00002")) as out:
            for number in range(3):
                out.write(
                    example(
                        tf,
                        {
                            "image/encoded": [jpeg(number)],
                            "image/class/label": [-number],
                            "score": [number / 4],
                            "tokens": [number, 2**40, -(2**63)],
                            "boxes": [0.5] * number,
                            "words": [b"a", b"\xc3\xbc"],
                        },
                    )
                )
    assert choose_source(tmp_path) == "tfrecord"
    listing, found = read_all(tmp_path)
    assert list(listing.names)[2:4] == [
        "train.tfrecord-00000-of-00002/00000002",
        "train.tfrecord-00001-of-00002/00000000",
    ]
    assert [(field.name, field.kind, field.shape, field.dtype) for field in listing.fields] == [
        ("boxes", "array", None, "<f4"),
        ("image/class/label", "int", None, None),
        ("image/encoded", "jpeg", None, None),
        ("score", "float", None, None),
        ("tokens", "array", (3,), "<i8"),
        ("words", "json", None, None),
    ]
    assert is_same(
        found[5],
        {
            "boxes": np.array([0.5, 0.5], np.float32),
            "image/class/label": -2,
            "image/encoded": jpeg(2),
            "score": 0.5,
            "tokens": np.array([2, 2**40, -(2**63)]),
            "words": ["a", "ü"],
        },
    )


def test_records_that_are_no_examples_are_taken_whole(tmp_path, tf):
    with tf.io.TFRecordWriter(str(tmp_path / "raw.tfrecord")) as out:
        for number in range(3):
            out.write(jpeg(number))
    listing, found = read_all(tmp_path / "raw.tfrecord")
    assert [(field.name, field.kind) for field in listing.fields] == [("image", "jpeg")]
    assert found == [{"image": jpeg(number)} for number in range(3)]
    assert listing.sizes.tolist() == [len(jpeg(number)) for number in range(3)]


def test_the_pypi_packages_writer_is_read(tmp_path):
    # in a process of its own: its message types clash with TensorFlow's
    write = """
import sys
from tfrecord.writer import TFRecordWriter
out = TFRecordWriter(sys.argv[1])
out.write({"x": (b"bytes", "byte"), "n": (7, "int"), "f": ([0.25, 0.5], "float")})
out.close()
"""
    subprocess.run([sys.executable, "-c", write, str(tmp_path / "a.tfrecord")], check=True)
    _, found = read_all(tmp_path / "a.tfrecord")
    assert is_same(found[0], {"x": b"bytes", "n": 7, "f": np.array([0.25, 0.5], np.float32)})


def write_frames(path: Path, records: list[bytes]) -> Path:
    path.write_bytes(b"".join(frame(record) for record in records))
    return path


def test_a_flipped_byte_in_a_record_is_that_records_fault(tmp_path):
    path = write_frames(tmp_path / "a.tfrecord", [b"one", b"two", b"three"])
    data = bytearray(path.read_bytes())
    data[19 + 12] ^= 1  # the t of two
    path.write_bytes(data)
    _, found = read_all(path)
    assert reasons(found) == [None, "its bytes do not match their checksum", None]


def test_a_flipped_length_is_named_with_its_place(tmp_path):
    path = write_frames(tmp_path / "a.tfrecord", [b"one", b"two", b"three"])
    data = bytearray(path.read_bytes())
    data[19] ^= 1
    path.write_bytes(data)
    _, found = read_all(path)
    assert reasons(found) == [
        None,
        "the rest of a.tfrecord cannot be read: the length at byte 19 does not match its checksum",
    ]


def test_a_file_cut_off_does_not_lose_samples_quietly(tmp_path):
    path = write_frames(tmp_path / "a.tfrecord", [b"one", b"two", b"three"])
    path.write_bytes(path.read_bytes()[:40])
    listing, found = read_all(path)
    assert reasons(found) == [None, None, "the rest of a.tfrecord cannot be read: it ends within a head, at byte 38"]
    assert list(listing.names) == ["a/00000000", "a/00000001", "a/00000002"]


def test_a_length_of_petabytes_allocates_nothing(tmp_path):
    from topout.packs.foreign.tfrecord_frames import masked_crc

    length = struct.pack("<Q", 1 << 60)
    (tmp_path / "a.tfrecord").write_bytes(length + struct.pack("<I", masked_crc(length)) + b"x" * 100)
    _, found = read_all(tmp_path / "a.tfrecord")
    assert "should have 1152921504606846976 bytes, the file ends before" in str(reasons(found)[0])


def test_a_sequence_example_is_not_mistaken_for_an_example(tmp_path, tf):
    record = tf.train.SequenceExample(
        context=tf.train.Features(feature={"a": tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))}),
        feature_lists=tf.train.FeatureLists(feature_list={"b": tf.train.FeatureList()}),
    ).SerializeToString()
    listing, found = read_all(write_frames(tmp_path / "a.tfrecord", [record]))
    assert [field.name for field in listing.fields] == ["data"] and found == [{"data": record}]


def test_a_compressed_file_is_refused_with_advice(tmp_path):
    import gzip

    (tmp_path / "a.tfrecord").write_bytes(gzip.compress(frame(b"x")))
    with pytest.raises(TopoutError, match="compressed as a whole") as refused:
        read_all(tmp_path / "a.tfrecord")
    (tmp_path / "OTHER").mkdir()
    command = refused.value.do.partition(": ")[2]
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    assert read_all(tmp_path / "OTHER" / "a.tfrecord")[1] == [{"data": b"x"}]


def test_a_feature_with_several_byte_strings_can_be_left_out(tmp_path, tf):
    record = example(tf, {"good": [1], "bad": [b"\xff", b"\xfe"]})
    path = write_frames(tmp_path / "a.tfrecord", [record])
    with pytest.raises(TopoutError) as raised:
        read_all(path)
    assert "'bad'" in raised.value.why and "--columns" in raised.value.do
    _, found = read_all(path, columns=("good",))
    assert found == [{"good": 1}]


def test_an_unknown_feature_is_answered_with_those_there_are(tmp_path, tf):
    path = write_frames(tmp_path / "a.tfrecord", [example(tf, {"good": [1], "other": [2]})])
    with pytest.raises(TopoutError, match="no column 'nope'") as raised:
        read_all(path, columns=("nope",))
    assert raised.value.why == "the source has good, other"
