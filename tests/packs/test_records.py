"""Whatever is put into a record comes out the same, with every codec; what does not fit is said."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from topout.packs.codecs import codec_of, zstd
from topout.packs.fields import Field
from topout.packs.record import RecordLayout
from topout.schema.errors import TopoutError

CODECS = ("raw", "lz4", "zstd", "bitshuffle")
dtypes = st.sampled_from(["?", "u1", "i1", "<u2", "<i4", "<u8", "<f2", "<f4", "<f8", "<c8", ">i4"])
arrays = hnp.arrays(dtype=dtypes, shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
texts = st.text(st.characters(codec="utf-8"))
documents = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(codec=st.sampled_from(CODECS), data=st.binary(max_size=300), array=arrays, text=texts, document=documents)
def test_a_record_gives_back_what_was_put_in(codec, data, array, text, document):
    fields = [
        Field(name="data", kind="bytes", codec=codec),
        Field(name="array", kind="array", codec=codec),
        Field(name="text", kind="str", codec=codec),
        Field(name="document", kind="json", codec=codec),
    ]
    layout = RecordLayout(fields, {})
    record = b"".join(layout.encode({"data": data, "array": array, "text": text, "document": document}))
    found = layout.decode(memoryview(record))
    assert found["data"] == data
    assert found["text"] == text
    assert found["document"] == document
    assert found["array"].shape == array.shape
    assert found["array"].dtype == array.dtype.newbyteorder("<")
    assert found["array"].tobytes() == array.astype(found["array"].dtype).tobytes()


@settings(max_examples=60, deadline=None)
@given(
    array=hnp.arrays(
        dtype=st.sampled_from(["<u2", "<f4", "<f8", "u1"]), shape=st.integers(0, 20_000).map(lambda n: (n,))
    )
)
def test_bitshuffle_is_undone(array):
    codec = codec_of("bitshuffle")
    stored = codec.encode(array.tobytes(), array.dtype.itemsize)
    assert codec.decode(memoryview(stored), array.dtype.itemsize) == array.tobytes()


def test_bitshuffle_makes_a_band_of_twelve_bits_smaller():
    band = np.random.default_rng(0).normal(800, 60, 120 * 120).astype("<u2")
    plain = len(codec_of("lz4").encode(band.tobytes(), 2))
    assert len(codec_of("bitshuffle").encode(band.tobytes(), 2)) < 0.75 * plain


def test_bit_planes_stand_one_after_another():
    from topout.packs.codecs.bitshuffle import _shuffled

    items = np.array([1, 0, 1, 0, 0, 0, 0, 2], dtype=np.uint8)
    assert _shuffled(items, 1).tolist() == [0b00000101, 0b10000000, 0, 0, 0, 0, 0, 0]


def test_a_trained_dictionary_makes_small_values_smaller():
    values = [json.dumps({"id": n, "place": f"street {n % 7}", "kind": "measurement"}).encode() for n in range(500)]
    dictionary = zstd.train(values)
    plain, trained = codec_of("zstd"), codec_of("zstd", dictionary)
    assert trained.decode(memoryview(trained.encode(values[9], 1)), 1) == values[9]
    assert len(trained.encode(values[9], 1)) < 0.7 * len(plain.encode(values[9], 1))


def test_no_dictionary_is_made_of_few_or_large_values():
    assert zstd.train([b"abc"] * 10) is None
    assert zstd.train([bytes(100_000)] * 100) is None


@pytest.mark.parametrize("codec", ["lz4", "zstd", "bitshuffle"])
@pytest.mark.parametrize("stored", [b"", b"x", b"\xff" * 40, b"\x28\xb5\x2f\xfd" + b"\xff" * 30])
def test_bytes_that_were_never_encoded_are_refused(codec, stored):
    with pytest.raises(ValueError, match=r"."):
        codec_of(codec).decode(memoryview(stored), 4)


def test_every_codec_of_the_folder_is_known_without_searching():
    from topout.packs import codecs
    from topout.schema.plugin import plugin_names

    assert set(codecs.OWN) == set(CODECS) <= set(plugin_names("topout.packs.codecs"))


def test_an_unknown_codec_is_answered_with_those_there_are():
    with pytest.raises(TopoutError) as caught:
        codec_of("zstandard")
    assert "zstd" in caught.value.do


FIXED = Field(name="x", kind="array", shape=(2,), dtype="<i4")


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        (FIXED, np.zeros(3, "<i4"), r"shape \(3,\), not \(2,\)"),
        (FIXED, np.zeros(2, "<i8"), "int64, not of int32"),
        (Field(name="x", kind="array"), np.array(["a"]), "cannot be packed"),
        (Field(name="x", kind="array"), np.zeros((1,) * 17), "17 dimensions"),
        (Field(name="x", kind="bytes"), "text", "is a str, not bytes"),
        (Field(name="x", kind="str"), b"bytes", "is a bytes, not text"),
        (Field(name="x", kind="json"), {1, 2}, "not JSON serializable"),
    ],
)
def test_a_value_that_does_not_fit_its_field_is_named(field, value, why):
    with pytest.raises(ValueError, match=why):
        RecordLayout([field], {}).encode({"x": value})


@pytest.mark.parametrize(("kind", "value"), [("int", 2**63), ("int", 1.5), ("int", "1"), ("float", "1")])
def test_a_number_that_does_not_fit_its_column_is_named(kind, value):
    with pytest.raises(ValueError, match="x is"):
        RecordLayout([Field(name="x", kind=kind)], {}).scalar_values({"x": value})


def test_missing_and_surplus_fields_are_named():
    layout = RecordLayout([Field(name="x", kind="bytes")], {})
    with pytest.raises(ValueError, match="it has the fields y, the pack x"):
        layout.encode({"y": b""})


def test_a_record_whose_lengths_do_not_add_up_is_refused():
    layout = RecordLayout([Field(name="x", kind="bytes")], {})
    with pytest.raises(ValueError, match="do not add up"):
        layout.decode(memoryview(b"\x05\0\0\0abc"))
    with pytest.raises(ValueError, match="shorter than its fixed part"):
        layout.decode(memoryview(b"\x05"))
