"""HDF5 files as h5py writes them: plain, chunked, compressed, with rows of varying length, and damaged."""

import h5py
import numpy as np
import pytest

from tests.packs.sources.reading import is_same, jpeg, read_all, reasons
from topout.packs.sources import choose_source
from topout.schema.errors import TopoutError


def test_datasets_of_one_length_are_columns(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["y"] = np.array([3, 1, 2], "u1")
        file["score"] = np.array([0.5, 0.25, 1], "f4")
        file["x"] = np.arange(12, dtype=">i2").reshape(3, 2, 2)
        file["deep/flag"] = np.array([True, False, True])
        file["text"] = ["eins", "zweï", ""]
        file["fixed"] = np.array([b"abc", b"d", b""])
        images = file.create_dataset("image", (3,), h5py.vlen_dtype(np.uint8))
        points = file.create_dataset("points", (3,), h5py.vlen_dtype(np.float32))
        for number in range(3):
            images[number] = np.frombuffer(jpeg(number), np.uint8)
            points[number] = np.arange(number, dtype="f4")
        file["scale"] = 3.5  # a single value is no column
    assert choose_source(tmp_path / "a.h5") == "hdf5"
    listing, found = read_all(tmp_path / "a.h5")
    assert [(field.name, field.kind, field.shape, field.dtype) for field in listing.fields] == [
        ("deep/flag", "int", None, None),
        ("fixed", "bytes", None, None),
        ("image", "jpeg", None, None),
        ("points", "array", None, "<f4"),
        ("score", "float", None, None),
        ("text", "str", None, None),
        ("x", "array", (2, 2), "<i2"),
        ("y", "int", None, None),
    ]
    assert is_same(
        found[1],
        {
            "deep/flag": 0,
            "fixed": b"d",
            "image": jpeg(1),
            "points": np.array([0], "f4"),
            "score": 0.25,
            "text": "zweï",
            "x": np.array([[4, 5], [6, 7]], "<i2"),
            "y": 1,
        },
    )
    assert list(listing.names) == ["00000000", "00000001", "00000002"]


def test_tables_of_different_lengths_are_refused_until_columns_are_chosen(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, length in (("x_train", 3), ("y_train", 3), ("x_test", 2), ("y_test", 2)):
            file[name] = np.arange(length)
    with pytest.raises(TopoutError, match="not columns of one table") as raised:
        read_all(tmp_path / "a.h5")
    assert "x_train 3" in raised.value.why and "--columns" in raised.value.do
    _, found = read_all(tmp_path / "a.h5", columns=("x_test", "y_test"))
    assert found == [{"x_test": 0, "y_test": 0}, {"x_test": 1, "y_test": 1}]
    with pytest.raises(TopoutError, match="no column 'z'"):
        read_all(tmp_path / "a.h5", columns=("z",))


def test_several_files_are_one_table(tmp_path):
    for name in ("a", "b"):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"] = np.array([1, 2])
    listing, _ = read_all(tmp_path)
    assert list(listing.names) == ["a/00000000", "a/00000001", "b/00000000", "b/00000001"]
    assert list(listing.read_range(1, 3)) == [{"x": 2}, {"x": 1}]


def test_a_chunk_that_fails_its_checksum_costs_its_own_rows_only(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset("x", (40,), "i8", chunks=(10,), fletcher32=True)
        data[:] = np.arange(40)
        offset = data.id.get_chunk_info(2).byte_offset
    broken = bytearray((tmp_path / "a.h5").read_bytes())
    broken[offset + 5] ^= 1
    (tmp_path / "a.h5").write_bytes(broken)
    _, found = read_all(tmp_path / "a.h5")
    bad = [number for number, reason in enumerate(reasons(found)) if reason is not None]
    assert bad == list(range(20, 30)) and found[30] == {"x": 30}


def test_a_file_cut_off_is_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(10_000)
    data = (tmp_path / "a.h5").read_bytes()
    (tmp_path / "a.h5").write_bytes(data[: len(data) // 2])
    with pytest.raises(TopoutError, match="cannot be read as HDF5"):
        read_all(tmp_path / "a.h5")


def test_records_of_mixed_types_are_refused_by_name(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["rows"] = np.zeros(3, [("a", "i4"), ("b", "f4")])
    with pytest.raises(TopoutError) as raised:
        read_all(tmp_path / "a.h5")
    assert "'rows'" in raised.value.why


def test_what_cannot_be_packed_is_left_out_by_choosing_the_others(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(3)
        file["rows"] = np.zeros(3, [("a", "i4"), ("b", "f4")])
    _, found = read_all(tmp_path / "a.h5", columns=("x",))
    assert found == [{"x": 0}, {"x": 1}, {"x": 2}]
    with pytest.raises(TopoutError, match="cannot be packed") as raised:
        read_all(tmp_path / "a.h5")
    assert "'rows'" in raised.value.why and "--columns" in raised.value.do
    with pytest.raises(TopoutError, match="no column 'z'") as raised:
        read_all(tmp_path / "a.h5", columns=("z",))
    assert "rows, x" in raised.value.why
