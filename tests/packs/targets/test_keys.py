"""Limits of the formats, said in three parts instead of lost samples."""

import numpy as np
import pytest

from tests.packs.sources.reading import is_same, jpeg, make_pack, read_all
from topout.packs.fields import Field
from topout.packs.foreign.webdataset import key_of, split_key
from topout.packs.targets import unpack
from topout.schema.errors import TopoutError

IMAGE = Field(name="image", kind="jpeg")


@pytest.mark.parametrize(
    "name, key",
    [
        ("n01/a.jpg", "n01/a"),
        ("n01/a.b.jpg", "n01/a_b"),
        ("n0.1/a.JPEG", "n0.1/a"),
        ("a.txt", "a_txt"),
        (".jpg", "_jpg"),
        ("../up/a", "__/up/a"),
        ("/abs/a", "abs/a"),
        ("line\nbreak", "line_break"),
    ],
)
def test_a_key_is_what_webdataset_splits_off_again(name, key):
    assert key_of(name, [IMAGE]) == key
    assert split_key(f"{key}.jpg") == (key, "jpg")


def test_names_that_become_one_key_stay_two_samples(tmp_path):
    samples = {"a.b": {"image": jpeg(1)}, "a_b": {"image": jpeg(2)}, "a_b.jpg": {"image": jpeg(3)}}
    with make_pack(tmp_path / "pack", [IMAGE], samples) as pack:
        unpack(pack, tmp_path / "out", "webdataset")
    listing, found = read_all(tmp_path / "out")
    assert dict(zip(listing.names, found, strict=True)) == samples


def test_fields_that_become_one_extension_are_refused(tmp_path):
    fields = [Field(name="A", kind="bytes"), Field(name="a", kind="bytes")]
    with make_pack(tmp_path / "pack", fields, {"x": {"A": b"", "a": b""}}) as pack:
        with pytest.raises(TopoutError, match="cannot become WebDataset") as raised:
            unpack(pack, tmp_path / "out", "webdataset")
    assert "both become .a" in raised.value.why


def test_a_name_too_long_for_lmdb_is_refused(tmp_path):
    with make_pack(tmp_path / "pack", [IMAGE], {"x" * 512: {"image": jpeg(1)}}) as pack:
        with pytest.raises(TopoutError, match="cannot be a key of LMDB"):
            unpack(pack, tmp_path / "out", "lmdb")
    assert not (tmp_path / "out").exists()


def test_text_with_a_nul_is_refused_by_hdf5(tmp_path):
    with make_pack(tmp_path / "pack", [Field(name="t", kind="str")], {"x": {"t": "a\0b"}}) as pack:
        with pytest.raises(TopoutError, match="cannot go to HDF5"):
            unpack(pack, tmp_path / "out.h5", "hdf5")
    assert not (tmp_path / "out.h5").exists()


ARRAY = Field(name="x", kind="array", shape=(2,), dtype="<f4")
NUMBERS = np.zeros(2, "<f4")


@pytest.mark.parametrize(
    ("fields", "sample"),
    [
        ([Field(name="__key__", kind="str")], {"__key__": "mine"}),
        ([ARRAY, Field(name="x/shape", kind="int")], {"x": NUMBERS, "x/shape": 3}),
        ([Field(name="x/dtype", kind="str"), ARRAY], {"x": NUMBERS, "x/dtype": "mine"}),
    ],
)
def test_fields_that_become_one_feature_are_refused_and_the_target_named_instead_takes_them(tmp_path, fields, sample):
    with make_pack(tmp_path / "pack", fields, {"a": sample}) as pack:
        with pytest.raises(TopoutError, match="cannot be a feature") as raised:
            unpack(pack, tmp_path / "out", "tfrecord")
        assert not (tmp_path / "out").exists()
        target = raised.value.do.rpartition(" ")[2]
        unpack(pack, tmp_path / "out", target)
    listing, [found] = read_all(tmp_path / "out")
    assert (list(listing.names), is_same(found, sample)) == (["a"], True)


def test_a_shape_that_belongs_to_no_array_is_a_feature_as_any_other(tmp_path):
    sample = {"y": 1, "y/shape": 3}
    with make_pack(tmp_path / "pack", [Field(name=name, kind="int") for name in sample], {"a": sample}) as pack:
        unpack(pack, tmp_path / "out", "tfrecord")
    assert read_all(tmp_path / "out")[1] == [sample]
