"""What topout unpacks is read by the libraries whose formats it writes, not only by topout."""

import h5py
import numpy as np
import pytest

from tests.packs.sources.reading import jpeg, make_pack
from topout.packs.fields import Field
from topout.packs.targets import NoProgress, hdf5, lmdb, tfrecord, webdataset

FIELDS = [
    Field(name="image", kind="jpeg"),
    Field(name="label", kind="int"),
    Field(name="score", kind="float"),
    Field(name="exact", kind="float"),
    Field(name="text", kind="str"),
    Field(name="meta", kind="json"),
    Field(name="box", kind="array", shape=(2, 2), dtype="<f4"),
]
BOX = np.array([[1, 2], [3, 4]], "<f4")


@pytest.fixture
def pack(tmp_path):
    samples = {
        f"n{number % 2}/{number:03d}.x.jpg": {
            "image": jpeg(number),
            "label": number - 3,
            "score": number / 4,
            "exact": 0.1 * number,
            "text": f"Nº {number}",
            "meta": {"n": [number]},
            "box": BOX * number,
        }
        for number in range(10)
    }
    with make_pack(tmp_path / "pack", FIELDS, samples) as made:
        yield made


def test_webdataset_reads_every_sample_once_and_decodes_it(tmp_path, pack):
    import webdataset as wds

    webdataset.write(pack, tmp_path / "out", NoProgress(), shard_bytes=40_000)
    shards = sorted(str(path) for path in (tmp_path / "out").iterdir())
    assert len(shards) > 1
    assert all((tmp_path / "out" / shard).stat().st_size <= 60_000 for shard in shards)
    found = list(wds.WebDataset(shards, shardshuffle=False).decode())
    assert [sample["__key__"] for sample in found] == [f"n{number % 2}/{number:03d}_x" for number in range(10)]
    assert [sample["cls"] for sample in found] == [number - 3 for number in range(10)]
    assert found[7]["text"] == "Nº 7" and found[7]["meta.json"] == {"n": [7]}
    assert (found[7]["box.npy"] == BOX * 7).all() and float(found[7]["exact.float"]) == 0.1 * 7
    raw = list(wds.WebDataset(shards, shardshuffle=False))
    assert [sample["jpg"] for sample in raw] == [jpeg(number) for number in range(10)]


def test_gnu_tar_lists_and_checks_the_archives(tmp_path, pack):
    import subprocess

    webdataset.write(pack, tmp_path / "out", NoProgress())
    (archive,) = (tmp_path / "out").iterdir()
    listed = subprocess.run(["tar", "-tf", archive], check=True, capture_output=True, text=True)
    assert listed.stdout.splitlines()[:2] == ["n0/000_x.jpg", "n0/000_x.cls"]


def test_tf_data_reads_every_sample_with_its_types(tmp_path, pack):
    import tensorflow as tf

    tfrecord.write(pack, tmp_path / "out", NoProgress(), file_bytes=4000)
    files = sorted(str(path) for path in (tmp_path / "out").glob("*.tfrecord"))
    assert len(files) > 1
    described = {
        "__key__": tf.io.FixedLenFeature([], tf.string),
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
        "score": tf.io.FixedLenFeature([], tf.float32),
        "exact": tf.io.FixedLenFeature([], tf.string),
        "text": tf.io.FixedLenFeature([], tf.string),
        "box": tf.io.FixedLenFeature([], tf.string),
        "box/shape": tf.io.FixedLenFeature([2], tf.int64),
    }
    found = [tf.io.parse_single_example(record, described) for record in tf.data.TFRecordDataset(files)]
    assert [sample["__key__"].numpy() for sample in found] == [
        f"n{number % 2}/{number:03d}.x.jpg".encode() for number in range(10)
    ]
    assert [int(sample["label"]) for sample in found] == [number - 3 for number in range(10)]
    assert [float(sample["score"]) for sample in found] == [number / 4 for number in range(10)]
    assert [sample["image"].numpy() for sample in found] == [jpeg(number) for number in range(10)]
    doubles = [tf.io.decode_raw(sample["exact"], tf.float64)[0].numpy() for sample in found]
    assert doubles == [0.1 * number for number in range(10)]
    box = tf.reshape(tf.io.decode_raw(found[7]["box"], tf.float32), found[7]["box/shape"])
    assert (box.numpy() == BOX * 7).all()


def test_lmdb_reads_names_labels_and_images(tmp_path, pack):
    import lmdb as library

    lmdb.write(pack, tmp_path / "out", NoProgress())
    with library.open(str(tmp_path / "out"), readonly=True, lock=False) as environment:
        with environment.begin() as transaction:
            assert transaction.get(b"n1/007.x.jpg") == jpeg(7)
            assert transaction.get(b"n1/007.x.jpg\0label") == b"4"
            assert transaction.get(b"n1/007.x.jpg\0text") == "Nº 7".encode()
            assert transaction.stat()["entries"] == 10 * len(FIELDS) + 1


def test_lmdb_grows_beyond_its_first_map(tmp_path):
    import lmdb as library

    blobs = {f"{number}": {"data": bytes([number]) * (16 << 20)} for number in range(9)}
    with make_pack(tmp_path / "pack", [Field(name="data", kind="bytes")], blobs) as made:
        lmdb.write(made, tmp_path / "out", NoProgress())
    with library.open(str(tmp_path / "out"), readonly=True, lock=False) as environment:
        with environment.begin(buffers=True) as transaction:
            assert [transaction.get(b"%d" % number)[-1] for number in range(9)] == list(range(9))


def test_h5py_reads_columns(tmp_path, pack):
    hdf5.write(pack, tmp_path / "out.h5", NoProgress())
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["label"][:].tolist() == [number - 3 for number in range(10)]
        assert file["exact"][:].tolist() == [0.1 * number for number in range(10)]
        assert file["box"].shape == (10, 2, 2) and (file["box"][7] == BOX * 7).all()
        assert file["image"][7].tobytes() == jpeg(7)
        assert file["__name__"].asstr()[7] == "n1/007.x.jpg" and file["text"].asstr()[7] == "Nº 7"
        assert file["box"].fletcher32
