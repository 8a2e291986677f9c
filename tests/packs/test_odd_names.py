"""Names that are not UTF-8, or no names at all: taken where they can be, else refused without harm to the others."""

import json
import os
import threading

import msgspec
import pytest

from tests.packs.packs import FIELDS, contents, image_folder, pack_folder, sample
from topout.packs.check import check_pack
from topout.packs.fields import Field
from topout.packs.pack import open_pack
from topout.packs.packing import packer, shard_writer
from topout.packs.packing.shard_writer import read_rows, write_rows
from topout.packs.packing.writer import PackWriter
from topout.packs.source_comparison import compare_with_source
from topout.packs.sources import BadEntry
from topout.schema.errors import TopoutError

ODD = os.fsdecode(b"cat/\xff\xfe.jpg")


def odd_folder(path):
    """Images, and one that is none, whose name is not UTF-8."""
    source = image_folder(path)
    (source / ODD).write_bytes(b"")
    return source


@pytest.mark.parametrize("name", ["\ud800", 7, None, b"bytes", ["unhashable"]])
def test_a_name_that_cannot_be_taken_leaves_the_others_whole(tmp_path, name):
    with PackWriter(tmp_path / "pack", fields=FIELDS) as writer:
        writer.add("first", sample(1))
        with pytest.raises(TopoutError):
            writer.add(name, sample(2))
        writer.add("last", sample(3))
    assert check_pack(tmp_path / "pack").damages == ()
    with open_pack(tmp_path / "pack") as pack:
        assert [pack.name(number) for number in range(len(pack))] == ["first", "last"]
        assert pack.column("label").tolist() == [sample(1)["label"], sample(3)["label"]]
        assert pack.sample(1)["caption"] == sample(3)["caption"]


def test_an_entry_that_is_left_out_may_be_called_anything(tmp_path):
    source = odd_folder(tmp_path / "images")
    report = pack_folder(source, tmp_path / "pack", on_error="skip")
    assert [entry.name for entry in report.bad] == [ODD]
    [line] = (tmp_path / "pack" / "skipped.txt").read_text(encoding="ascii").splitlines()
    assert json.loads(line)["name"] == ODD
    assert check_pack(tmp_path / "pack").damages == ()
    assert compare_with_source(tmp_path / "pack", source).differences == ()


def test_packing_goes_on_after_a_kill_at_the_shard_that_left_it_out(tmp_path, monkeypatch):
    source = odd_folder(tmp_path / "images")
    pack_folder(source, tmp_path / "fresh", on_error="skip", shard_bytes=2000)
    with monkeypatch.context() as patch:
        patch.setattr(packer, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            pack_folder(source, tmp_path / "pack", on_error="skip", shard_bytes=2000)
    report = pack_folder(source, tmp_path / "pack", on_error="skip", shard_bytes=2000)
    assert report.num_shards_kept == len(report.manifest.shards) > 1
    assert [entry.name for entry in report.bad] == [ODD]
    assert contents(tmp_path / "pack") == contents(tmp_path / "fresh")


def test_shards_that_an_earlier_topout_finished_are_still_read(tmp_path, monkeypatch):
    rows = shard_writer.ShardWriter(tmp_path / "data", (Field(name="data", kind="bytes"),), bytes(16), 0)
    rows.append("a", [b"x"], [])
    rows.bad.append(BadEntry(number=1, name="bé", reason="ü"))
    done = rows.close()
    with monkeypatch.context() as patch:
        patch.setattr(shard_writer.json, "dumps", lambda head: msgspec.json.encode(head).decode())
        write_rows(tmp_path / "rows", done)
    found = read_rows(tmp_path / "rows", (Field(name="data", kind="bytes"),))
    assert (found.names, found.bad) == ([b"a"], done.bad)


def test_classes_may_be_called_anything_and_the_packs_of_others_keep_their_id(tmp_path):
    odd, plain = os.fsdecode(b"\xff"), ["é", "line\nbreak"]
    ids = {}
    for number, classes in enumerate(([odd, "b"], plain, None)):
        with PackWriter(tmp_path / str(number), fields=[Field(name="label", kind="int")], classes=classes) as writer:
            writer.add("a", {"label": 0})
        ids[number] = writer.manifest.pack_id
        with open_pack(tmp_path / str(number)) as pack:
            assert pack.manifest.classes == (None if classes is None else tuple(classes))
    # as they were when msgspec wrote what is hashed
    assert (ids[1], ids[2]) == ("00b39b7e637082b8169c394e0c9d4486", "a0a4f4398a6b0d3d2f64e4f2343b020b")


def test_a_shard_whose_rows_cannot_be_written_stops_the_other_threads(tmp_path, monkeypatch):
    source = image_folder(tmp_path / "images", per_class=40)
    failed, written = threading.Event(), []

    def fail(path, shard):
        if failed.is_set():
            written.append(path)
        failed.set()
        raise ValueError("no rows")

    monkeypatch.setattr(packer, "write_rows", fail)
    with pytest.raises(ValueError, match="no rows"):
        pack_folder(source, tmp_path / "pack", shard_bytes=2000, num_workers=1)
    assert written == []
