"""LMDB environments as others write them, in both layouts on disk, and cut ones."""

import os
import threading

import pytest

from tests.packs.sources.reading import jpeg, make_pack, read_all
from topout.packs.fields import Field
from topout.packs.sources import choose_source, open_source
from topout.packs.targets import unpack
from topout.schema.errors import ExitCode, TopoutError


def write_lmdb(path, entries: dict[bytes, bytes], *, subdir: bool = True) -> None:
    import lmdb

    with lmdb.open(str(path), map_size=1 << 24, subdir=subdir) as environment:
        with environment.begin(write=True) as transaction:
            for key, value in entries.items():
                transaction.put(key, value)


@pytest.mark.parametrize("subdir", [True, False])
def test_keys_are_names_in_their_order_and_values_are_told_by_their_signature(tmp_path, subdir):
    path = tmp_path / "train.lmdb"
    write_lmdb(path, {b"b": jpeg(2), b"a/1": jpeg(1), b"__len__": b"pickled", b"\xff": jpeg(3)}, subdir=subdir)
    assert choose_source(path) == "lmdb"
    listing, found = read_all(path)
    assert list(listing.names) == ["a/1", "b", "\udcff"]
    assert [(field.name, field.kind) for field in listing.fields] == [("image", "jpeg")]
    assert found == [{"image": jpeg(number)} for number in (1, 2, 3)]
    assert listing.sizes.tolist() == [len(jpeg(number)) for number in (1, 2, 3)]


def test_binary_keys_are_samples_too(tmp_path):
    write_lmdb(tmp_path / "l", {number.to_bytes(4, "big"): bytes([number]) for number in range(3)})
    listing, found = read_all(tmp_path / "l")
    assert found == [{"data": b"\0"}, {"data": b"\1"}, {"data": b"\2"}]
    assert list(listing.names) == ["\0\0\0\0", "\0\0\0\1", "\0\0\0\2"]


def test_a_file_cut_off_is_refused_instead_of_killing_the_process(tmp_path):
    write_lmdb(tmp_path / "l", {b"%d" % number: bytes(100_000) for number in range(20)})
    data = (tmp_path / "l" / "data.mdb").read_bytes()
    (tmp_path / "l" / "data.mdb").write_bytes(data[: len(data) // 2])
    with pytest.raises(TopoutError, match="cannot be read as LMDB") as raised:
        read_all(tmp_path / "l")
    assert "cut off" in raised.value.why


def test_a_file_that_is_no_lmdb_is_refused(tmp_path):
    (tmp_path / "x.lmdb").write_bytes(b"not lmdb" * 1000)
    with pytest.raises(TopoutError, match="cannot be read as LMDB"):
        read_all(tmp_path / "x.lmdb")


def break_leaves(file) -> None:
    """Every page of leaves says that it is one of an overflow: the number of a page, two bytes, then its flags."""
    leaf, overflow, page_bytes = 0x02, 0x04, os.sysconf("SC_PAGE_SIZE")
    data = file.read_bytes()
    with open(file, "r+b") as opened:
        for page in range(2, len(data) // page_bytes):
            place = page * page_bytes + 10
            if data[place] == leaf:
                opened.seek(place)
                opened.write(bytes([overflow]))


@pytest.mark.parametrize("is_listed_before", [False, True])
def test_a_damaged_page_is_the_files_and_no_traceback(tmp_path, is_listed_before):
    write_lmdb(tmp_path / "l", {b"%05d" % number: bytes(100) for number in range(5_000)})
    listing = open_source(tmp_path / "l")[1] if is_listed_before else None
    break_leaves(tmp_path / "l" / "data.mdb")
    with pytest.raises(TopoutError, match="cannot be read as LMDB") as raised:
        list((listing or open_source(tmp_path / "l")[1]).read_range(0, 10))
    assert "MDB_CORRUPTED" in raised.value.why and raised.value.exit_code == ExitCode.ENVIRONMENT


def test_several_threads_and_listings_read_one_environment(tmp_path):
    write_lmdb(tmp_path / "l", {b"%03d" % number: b"%d" % number for number in range(200)})
    _, one = open_source(tmp_path / "l")
    _, two = open_source(tmp_path / "l")
    found: dict[int, list] = {}

    def read(start: int, listing) -> None:
        found[start] = [sample["data"] for sample in listing.read_range(start, start + 50)]

    threads = [threading.Thread(target=read, args=(start, (one, two)[start // 50 % 2])) for start in range(0, 200, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [value for start in sorted(found) for value in found[start]] == [b"%d" % number for number in range(200)]


def test_a_missing_package_is_named_with_the_remedy(tmp_path, monkeypatch):
    import sys

    write_lmdb(tmp_path / "l", {b"a": b"x"})
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(TopoutError, match="needs the package lmdb") as raised:
        open_source(tmp_path / "l")
    assert raised.value.do == "pip install 'topout[formats]'" and raised.value.exit_code == 3


def test_the_size_of_a_sample_is_that_of_all_its_fields(tmp_path):
    fields = [Field(name="label", kind="int"), Field(name="data", kind="bytes")]
    # names that begin alike: the fields of "a" lie before "a!" and "ab"
    samples = {name: {"label": 7, "data": bytes(1000 + number)} for number, name in enumerate(["a", "a!", "ab", "b"])}
    with make_pack(tmp_path / "pack", fields, samples) as pack:
        unpack(pack, tmp_path / "l", "lmdb")
    listing, found = read_all(tmp_path / "l")
    assert list(listing.names) == list(samples) and found == list(samples.values())
    assert listing.sizes.tolist() == [1 + 1000 + number for number in range(4)]
