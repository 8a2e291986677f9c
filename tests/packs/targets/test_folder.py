"""Unpacking to a folder: the same tree again, and nothing outside it."""

import errno
import json
import os

import numpy as np
import pytest

from tests.packs.sources.reading import jpeg, make_pack, read_all
from topout.packs.fields import Field
from topout.packs.pack import open_pack
from topout.packs.packing.options import PackOptions
from topout.packs.packing.packer import pack as pack_source
from topout.packs.targets import folder as folder_target
from topout.packs.targets import unpack
from topout.schema.errors import TopoutError

BLOB = [Field(name="data", kind="bytes")]


def tree(folder) -> dict[str, bytes]:
    return {
        os.path.relpath(os.path.join(where, name), folder): open(os.path.join(where, name), "rb").read()
        for where, _, names in os.walk(folder)
        for name in names
    }


def test_a_folder_comes_back_file_for_file(tmp_path):
    source = tmp_path / "images"
    for name in ("cat/1.jpg", "cat/deep/2.JPG", "dog/ü\n.jpeg", os.fsdecode(b"dog/\xff.jpg")):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(jpeg(len(name)))
    listing, _ = read_all(source)
    pack_source(listing, ("folder", source), tmp_path / "pack", PackOptions())
    with open_pack(tmp_path / "pack") as pack:
        unpack(pack, tmp_path / "out", "folder")
    assert tree(tmp_path / "out") == tree(source)


@pytest.mark.parametrize("name", ["/etc/cron.d/x", "../x", "a/../../x", "a//b", "./a", "a/.", "..", "fields.jsonl"])
def test_names_that_lead_elsewhere_are_refused(tmp_path, name):
    with make_pack(tmp_path / "pack", BLOB, {name: {"data": b"x"}}) as pack:
        with pytest.raises(TopoutError, match="cannot be a file of the folder"):
            unpack(pack, tmp_path / "deep" / "out", "folder")
    assert list((tmp_path / "deep").iterdir()) == []


@pytest.mark.parametrize(("first", "second"), [("a", "a/b"), ("a/b", "a"), ("x/a", "x/a/b/c")])
def test_two_samples_of_which_one_would_be_the_others_folder_are_named(tmp_path, first, second):
    with make_pack(tmp_path / "pack", BLOB, {first: {"data": b"x"}, second: {"data": b"y"}}) as pack:
        with pytest.raises(TopoutError, match=f"'{second}' cannot be written to a folder") as caught:
            unpack(pack, tmp_path / "out", "folder")
    assert caught.value.why.startswith(f"sample '{first}' has made ")
    assert "--to webdataset" in caught.value.do
    assert not (tmp_path / "out").exists()


def test_names_without_an_ending_get_the_images(tmp_path):
    samples = {"000": {"image": jpeg(1), "label": 5}, "b.jpg": {"image": jpeg(2), "label": 6}}
    fields = [Field(name="image", kind="jpeg"), Field(name="label", kind="int")]
    with make_pack(tmp_path / "pack", fields, samples) as pack:
        unpack(pack, tmp_path / "out", "folder")
    found = tree(tmp_path / "out")
    lines = [json.loads(line) for line in found.pop("fields.jsonl").splitlines()]
    assert found == {"000.jpg": jpeg(1), "b.jpg": jpeg(2)}
    assert lines == [{"name": "000", "label": 5}, {"name": "b.jpg", "label": 6}]


@pytest.mark.parametrize(("first", "second"), [("a", "a.jpg"), ("a.jpg", "a")])
def test_two_samples_never_share_a_file(tmp_path, first, second):
    samples = {first: {"image": jpeg(1)}, second: {"image": jpeg(2)}}
    with make_pack(tmp_path / "pack", [Field(name="image", kind="jpeg")], samples) as pack:
        with pytest.raises(TopoutError, match=f"'{second}' cannot be written to a folder") as caught:
            unpack(pack, tmp_path / "out", "folder")
    assert caught.value.why == f"sample '{first}' has made 'a.jpg' already"


def test_a_full_disk_is_told_in_words_that_are_true_of_unpacking(tmp_path, monkeypatch):
    def full(_path, _data, _pack, _name):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folder_target, "_create", full)
    with make_pack(tmp_path / "pack", BLOB, {"a": {"data": b"x"}}) as pack:
        with pytest.raises(TopoutError, match="cannot be written") as caught:
            unpack(pack, tmp_path / "out", "folder")
    assert caught.value.do == ("free some space, then give the same command again: what was written of it is removed")
    assert [path.name for path in tmp_path.iterdir()] == ["pack"]


def test_arrays_become_npy_files(tmp_path):
    fields = [Field(name="x", kind="array", shape=(2,), dtype="<f4")]
    with make_pack(tmp_path / "pack", fields, {"s/1": {"x": np.array([1, 2], "<f4")}}) as pack:
        unpack(pack, tmp_path / "out", "folder")
    assert np.load(tmp_path / "out" / "s" / "1.x.npy", allow_pickle=False).tolist() == [1, 2]


def test_a_read_only_place_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with make_pack(tmp_path / "pack", BLOB, {"a": {"data": b"x"}}) as pack:
        with pytest.raises(TopoutError, match="cannot be written") as raised:
            unpack(pack, tmp_path / "file" / "out", "folder")
    assert raised.value.exit_code == 3


def test_progress_counts_every_sample(tmp_path):
    class Counting:
        num_samples = 0
        num_bytes = 0

        def add(self, num_samples, num_bytes):
            self.num_samples += num_samples
            self.num_bytes += num_bytes

    counting = Counting()
    with make_pack(tmp_path / "pack", BLOB, {str(n): {"data": bytes(10)} for n in range(7)}) as pack:
        unpack(pack, tmp_path / "out", "folder", counting)
    assert (counting.num_samples, counting.num_bytes) == (7, 7 * (4 + 10))
