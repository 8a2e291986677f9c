"""Parquet and Arrow files as pyarrow and Hugging Face write them."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.packs.sources.reading import is_same, jpeg, png, read_all, reasons
from topout.packs.sources import choose_source
from topout.schema.errors import TopoutError


def table(num_rows: int = 5, start: int = 0) -> pa.Table:
    rows = range(start, start + num_rows)
    columns = {
        "image": pa.array([{"bytes": jpeg(row), "path": f"{row}.jpg"} for row in rows]),
        "label": pa.array(list(rows), pa.int8()),
        "mask": pa.array([png(row) for row in rows], pa.binary()),
        "flag": pa.array([row % 2 == 0 for row in rows]),
        "score": pa.array([row / 4 for row in rows], pa.float32()),
        "text": pa.array([f"Nº {row}" for row in rows]),
        "tokens": pa.array([list(range(row)) for row in rows], pa.list_(pa.uint16())),
        "box": pa.array([[row, 0.5] for row in rows], pa.list_(pa.float32(), 2)),
        "nested": pa.array([{"a": [row, None], "b": b"\0"} for row in rows]),
    }
    features = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    return pa.table(columns).replace_schema_metadata({"huggingface": json.dumps(features)})


EXPECTED = {
    "image": jpeg(3),
    "label": 3,
    "mask": png(3),
    "flag": 0,
    "score": 0.75,
    "text": "Nº 3",
    "tokens": np.array([0, 1, 2], "<u2"),
    "box": np.array([3, 0.5], "<f4"),
    "nested": {"a": [3, None], "b": "AA=="},
}


def write(path, kind: str) -> None:
    rows = table()
    if kind == "parquet":
        pq.write_table(rows, path, row_group_size=2)
    elif kind == "stream":
        with pa.ipc.new_stream(path, rows.schema) as out:
            out.write_table(rows, max_chunksize=2)
    else:
        with pa.ipc.new_file(path, rows.schema) as out:
            out.write_table(rows, max_chunksize=2)


@pytest.mark.parametrize("kind", ["parquet", "stream", "file"])
def test_every_type_of_column_gives_its_kind_of_field(tmp_path, kind):
    path = tmp_path / ("a.parquet" if kind == "parquet" else "a.arrow")
    write(path, kind)
    assert choose_source(path) == "parquet"
    listing, found = read_all(path)
    assert [(field.name, field.kind, field.shape, field.dtype) for field in listing.fields] == [
        ("image", "jpeg", None, None),
        ("label", "int", None, None),
        ("mask", "png", None, None),
        ("flag", "int", None, None),
        ("score", "float", None, None),
        ("text", "str", None, None),
        ("tokens", "array", None, "<u2"),
        ("box", "array", (2,), "<f4"),
        ("nested", "json", None, None),
    ]
    assert listing.classes == ("cat", "dog")
    assert is_same(found[3], EXPECTED)
    assert listing.names[3] == "a/00000003"


@pytest.mark.parametrize("kind", ["parquet", "stream", "file"])
def test_any_range_is_the_slice_of_the_whole(tmp_path, kind):
    path = tmp_path / ("a.parquet" if kind == "parquet" else "a.arrow")
    write(path, kind)
    listing, found = read_all(path, columns=("label", "tokens"))
    for start in range(6):
        for stop in range(start, 6):
            assert is_same(dict(enumerate(listing.read_range(start, stop))), dict(enumerate(found[start:stop])))


def test_a_folder_saved_by_hugging_face_is_one_table(tmp_path):
    for number in range(2):
        with pa.ipc.new_stream(tmp_path / f"data-{number:05d}-of-00002.arrow", table().schema) as out:
            out.write_table(table(3, 3 * number))
    (tmp_path / "dataset_info.json").write_text("{}")
    (tmp_path / "state.json").write_text("{}")
    assert choose_source(tmp_path) == "parquet"
    listing, found = read_all(tmp_path, columns=("label",))
    assert [sample["label"] for sample in found] == [0, 1, 2, 3, 4, 5]
    assert listing.names[3] == "data-00001-of-00002/00000000"


def test_a_null_within_a_list_is_no_number(tmp_path):
    rows = pa.table({"v": pa.array([[1.0, 2.0], [1.0, None]], pa.list_(pa.float32(), 2))})
    pq.write_table(rows, tmp_path / "a.parquet")
    _, found = read_all(tmp_path / "a.parquet")
    assert reasons(found) == [None, "v is not an array: it has null values or rows of different lengths"]


def test_a_null_is_named_except_within_json(tmp_path):
    rows = pa.table({"n": pa.array([1, None, 3]), "j": pa.array([{"a": 1}, {"a": 2}, None])})
    pq.write_table(rows, tmp_path / "a.parquet")
    _, found = read_all(tmp_path / "a.parquet")
    assert reasons(found) == [None, "n is null", None] and found[2] == {"n": 3, "j": None}


def test_a_page_that_fails_its_checksum_is_noticed(tmp_path):
    rows = pa.table({"x": pa.array(range(1000), pa.int64())})
    pq.write_table(
        rows, tmp_path / "a.parquet", write_page_checksum=True, compression="none", use_dictionary=False,
        row_group_size=500,
    )  # fmt: skip
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    place = data.index((100).to_bytes(8, "little"))
    data[place] ^= 1
    (tmp_path / "a.parquet").write_bytes(data)
    _, found = read_all(tmp_path / "a.parquet")
    assert all("CRC" in str(reason) for reason in reasons(found)[:500])
    assert found[500:] == [{"x": number} for number in range(500, 1000)]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_file_cut_off_or_foreign_is_refused(tmp_path, name):
    write(tmp_path / name, "parquet" if name == "a.parquet" else "file")
    data = (tmp_path / name).read_bytes()
    for broken in (data[: len(data) // 2], b"not arrow" * 100, b""):
        (tmp_path / name).write_bytes(broken)
        with pytest.raises(TopoutError, match="cannot be read"):
            read_all(tmp_path / name)


def test_files_with_other_columns_are_refused(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"b": [1]}), tmp_path / "2.parquet")
    with pytest.raises(TopoutError, match="other columns"):
        read_all(tmp_path)


def test_an_unknown_column_is_answered_with_those_there_are(tmp_path):
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "t.parquet")
    with pytest.raises(TopoutError, match="no column 'nope'") as caught:
        read_all(tmp_path / "t.parquet", columns=("a", "nope"))
    assert caught.value.why == "the source has a, b"
