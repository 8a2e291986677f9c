"""NumPy files: rows of one array, of an archive's arrays, of a folder's; never a pickle."""

import os

import numpy as np
import pytest

from tests.packs.sources.reading import is_same, read_all, reasons
from topout.packs.sources import choose_source
from topout.schema.errors import TopoutError

X = np.arange(24, dtype="<f4").reshape(4, 3, 2)
Y = np.array([3, 1, 4, 1], "<i4")


def test_rows_of_a_npy_are_samples(tmp_path):
    np.save(tmp_path / "x.npy", X)
    assert choose_source(tmp_path / "x.npy") == "numpy_files"
    listing, found = read_all(tmp_path / "x.npy")
    assert [(field.name, field.kind, field.shape, field.dtype) for field in listing.fields] == [
        ("data", "array", (3, 2), "<f4")
    ]
    assert is_same(found[2], {"data": X[2]})
    assert listing.sizes.tolist() == [24] * 4


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_an_archive_are_columns(tmp_path, save):
    save(tmp_path / "a.npz", x=X, y=Y, w=np.array([0.5, 1, 2, 4]), t=np.array(["a", "bc", "ü", ""]))
    listing, found = read_all(tmp_path / "a.npz")
    assert [(field.name, field.kind) for field in listing.fields] == [
        ("x", "array"), ("y", "int"), ("w", "float"), ("t", "str"),
    ]  # fmt: skip
    assert is_same(found[2], {"x": X[2], "y": 4, "w": 2.0, "t": "ü"})
    assert is_same(dict(enumerate(listing.read_range(1, 3))), dict(enumerate(found[1:3])))


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_folder_of_columns_is_read_when_asked_for(tmp_path, order):
    np.save(tmp_path / "x.npy", np.asarray(X, order=order))
    np.save(tmp_path / "y.npy", Y.astype(">i4"))
    assert choose_source(tmp_path) == "folder"
    _, found = read_all(tmp_path, "numpy_files")
    assert is_same(found[1], {"x": X[1], "y": 1})


def test_object_arrays_are_refused_without_being_opened(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    np.save(tmp_path / "x.npy", np.array([Trap()], object), allow_pickle=True)
    with pytest.raises(TopoutError) as raised:
        read_all(tmp_path / "x.npy")
    assert "pickle" in raised.value.why and not (tmp_path / "sprung").exists()


def test_arrays_of_different_lengths_are_refused_until_columns_are_chosen(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=X, x_test=X[:2])
    with pytest.raises(TopoutError, match="not equally long") as raised:
        read_all(tmp_path / "a.npz")
    assert "x_train 4, x_test 2" in raised.value.why
    _, found = read_all(tmp_path / "a.npz", columns=("x_test",))
    assert len(found) == 2


@pytest.mark.parametrize("kept_share", [0.1, 0.5, 0.99])
@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_a_file_cut_off_is_refused(tmp_path, name, kept_share):
    np.save(tmp_path / name, X) if name == "a.npy" else np.savez(tmp_path / name, x=X)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: int(len(data) * kept_share)])
    with pytest.raises(TopoutError, match="cannot be read"):
        read_all(tmp_path / name)


def test_a_shape_of_petabytes_allocates_nothing(tmp_path):
    np.save(tmp_path / "x.npy", X)
    data = (tmp_path / "x.npy").read_bytes().replace(b"(4, 3, 2), }", b"(9999999999,3,2),}".ljust(18)[:18])
    (tmp_path / "x.npy").write_bytes(data)
    with pytest.raises(TopoutError, match="cannot be read"):
        read_all(tmp_path / "x.npy")


def test_a_flipped_byte_in_a_compressed_archive_is_noticed(tmp_path):
    values = np.random.default_rng(0).integers(0, 255, (400, 1000), np.uint8)
    np.savez_compressed(tmp_path / "a.npz", x=values)
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "a.npz").write_bytes(data)
    _, found = read_all(tmp_path / "a.npz")
    assert any(reasons(found))


def test_a_single_value_has_no_rows(tmp_path):
    np.save(tmp_path / "x.npy", np.float32(1))
    with pytest.raises(TopoutError) as raised:
        read_all(tmp_path / "x.npy")
    assert "without rows" in raised.value.why


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_cannot_be_packed_is_left_out_by_choosing_the_others(tmp_path, save):
    objects = np.array([{}], object)
    by_columns = np.asfortranarray(np.ones((4, 2)))
    save(tmp_path / "a.npz", x=X, y=Y, seed=42, notes=objects, moments=np.zeros(4, "M8[s]"), f=by_columns)
    _, found = read_all(tmp_path / "a.npz", columns=("y", "x"))
    assert is_same(found[2], {"x": X[2], "y": 4})
    with pytest.raises(TopoutError, match="cannot be read") as raised:
        read_all(tmp_path / "a.npz")
    assert "'seed' is a single value" in raised.value.why and "--columns" in raised.value.do
    with pytest.raises(TopoutError, match="cannot be packed") as raised:
        read_all(tmp_path / "a.npz", columns=("x", "moments"))
    assert "'moments'" in raised.value.why and "--columns" in raised.value.do
    with pytest.raises(TopoutError, match="no column 'z'") as raised:
        read_all(tmp_path / "a.npz", columns=("z",))
    assert "seed" in raised.value.why


def test_a_column_of_a_folder_that_cannot_be_read_is_left_out_by_choosing_the_others(tmp_path):
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "broken.npy").write_bytes(b"not an array")
    _, found = read_all(tmp_path, "numpy_files", columns=("x",))
    assert is_same(found[1], {"x": X[1]})
    with pytest.raises(TopoutError, match=r"broken\.npy cannot be read") as raised:
        read_all(tmp_path, "numpy_files")
    assert "'broken'" in raised.value.why and "--columns" in raised.value.do
