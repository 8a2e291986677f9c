"""Packing: what becomes a sample, what is refused and how, and that nothing done is done twice."""

import fcntl
import json
import os
import threading
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.packs.packs import contents, file_folder, image_folder, jpeg, pack_folder
from topout.packs import layout
from topout.packs.check import check_pack
from topout.packs.fields import Field
from topout.packs.manifest import read_manifest
from topout.packs.pack import open_pack
from topout.packs.packing import shard_writer
from topout.packs.packing.options import PackOptions
from topout.packs.packing.packer import pack
from topout.packs.packing.plan import cut
from topout.packs.sources import BadEntry, choose_source, open_source
from topout.schema.errors import TopoutError


class Numbers:
    """A listing of made-up entries, which notes what is read of it."""

    def __init__(self, names, fails_at=None):
        self.names = names
        self.fields = (Field(name="data", kind="bytes"),)
        self.sizes = np.full(len(names), 100, np.int64)
        self.fingerprint = "as it was"
        self.classes = None
        self.num_files = len(names)
        self.num_folders = 1
        self.fails_at = fails_at
        self.was_read = []

    def read_range(self, start, stop):
        for number in range(start, stop):
            if number == self.fails_at:
                raise OSError(5, "Input/output error")
            self.was_read.append(number)
            yield {"data": f"{number}".encode() * 50}


def pack_numbers(listing, destination, **options):
    source = (listing.__class__.__name__, destination.parent / "source")
    return pack(listing, source, destination, PackOptions(shard_bytes=1640, num_workers=1, **options))


def test_class_folders_become_labels(tmp_path):
    source = image_folder(tmp_path / "images", per_class=3, classes=("dog", "cat", "Zebra"))
    report = pack_folder(source, tmp_path / "pack")
    assert report.manifest.classes == ("Zebra", "cat", "dog")
    with open_pack(tmp_path / "pack") as pack:
        assert [(field.name, field.kind) for field in pack.fields] == [("image", "jpeg"), ("label", "int")]
        assert pack.column("label").tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        for number in range(9):
            assert pack.sample(number)["image"] == (source / pack.name(number)).read_bytes()
        assert pack.index["flags"].tolist() == [0] * 9


def test_other_folders_become_bytes_with_any_name_and_size(tmp_path):
    source = tmp_path / "files"
    names = ["deep/er/still/a.txt", "Ω.txt", "line\nbreak", "empty", os.fsdecode(b"\xff.bin"), "a b"]
    for number, name in enumerate(names):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(b"" if name == "empty" else bytes([number]) * (number * 777))
    pack_folder(source, tmp_path / "pack")
    with open_pack(tmp_path / "pack") as pack:
        found = [pack.name(number) for number in range(len(pack))]
        assert found == sorted(names, key=os.fsencode)
        for number, name in enumerate(found):
            assert pack.sample(number) == {"data": (source / name).read_bytes()}


def test_packing_again_gives_the_same_bytes_whatever_the_threads(tmp_path):
    source = file_folder(tmp_path / "files", 60, 700)
    for number, workers in enumerate((1, 2, 5)):
        pack_folder(source, tmp_path / f"pack{number}", shard_bytes=5000, num_workers=workers)
    assert contents(tmp_path / "pack0") == contents(tmp_path / "pack1") == contents(tmp_path / "pack2")
    assert len(read_manifest(tmp_path / "pack0").shards) == 10


def test_a_finished_pack_is_left_alone(tmp_path):
    source = file_folder(tmp_path / "files", 5, 100)
    pack_folder(source, tmp_path / "pack")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "pack").iterdir()}
    assert pack_folder(source, tmp_path / "pack").was_there
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "pack").iterdir()} == before


def test_another_pack_is_not_written_over_unless_forced(tmp_path):
    pack_folder(file_folder(tmp_path / "files", 50, 1000), tmp_path / "pack", shard_bytes=5000)
    other = file_folder(tmp_path / "others", 4, 100)
    with pytest.raises(TopoutError, match="holds a pack already"):
        pack_folder(other, tmp_path / "pack")
    pack_folder(other, tmp_path / "pack", is_replacing=True)
    pack_folder(other, tmp_path / "fresh")
    assert contents(tmp_path / "pack") == contents(tmp_path / "fresh")


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    source = file_folder(tmp_path / "files", 3, 10)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "index.bin").write_bytes(b"precious")
    for options in ({}, {"is_replacing": True}):
        with pytest.raises(TopoutError, match="is not empty"):
            pack_folder(source, tmp_path / "mine", **options)
    assert contents(tmp_path / "mine").keys() == {"index.bin"}


def test_a_pack_is_not_put_into_its_own_source(tmp_path):
    source = file_folder(tmp_path / "files", 3, 10)
    with pytest.raises(TopoutError, match="lies in"):
        pack_folder(source, source / "pack")
    assert not (source / "pack").exists()


def test_finished_shards_are_not_read_again(tmp_path):
    names = [f"{number:03d}" for number in range(100)]
    broken = Numbers(names, fails_at=57)
    with pytest.raises(TopoutError, match="source cannot be read") as caught:
        pack_numbers(broken, tmp_path / "pack")
    assert "Input/output error" in caught.value.why
    mended = Numbers(names)
    report = pack_numbers(mended, tmp_path / "pack")
    assert (report.num_shards_kept, mended.was_read) == (5, list(range(50, 100)))
    pack_numbers(Numbers(names), tmp_path / "fresh")
    assert contents(tmp_path / "pack") == contents(tmp_path / "fresh")


def test_a_pack_that_was_begun_is_not_mixed_with_another(tmp_path):
    names = [f"{number:03d}" for number in range(100)]
    with pytest.raises(TopoutError):
        pack_numbers(Numbers(names, fails_at=57), tmp_path / "pack")
    changed = Numbers(names)
    changed.fingerprint = "later"
    with pytest.raises(TopoutError, match="was begun and cannot be gone on with") as caught:
        pack_numbers(changed, tmp_path / "pack")
    assert "changed since" in caught.value.why
    with pytest.raises(TopoutError, match="was begun") as caught:
        pack_numbers(Numbers(names[:50]), tmp_path / "pack")
    assert "another source, with other options" in caught.value.why
    assert pack_numbers(changed, tmp_path / "pack", is_replacing=True).num_shards_kept == 0


def test_a_trained_dictionary_survives_an_interruption(tmp_path):
    class Sentences(Numbers):
        def read_range(self, start, stop):
            for found in super().read_range(start, stop):
                yield {"data": b"all of these begin alike and end with " + found["data"][:6]}

    names = [f"{number:04d}" for number in range(1000)]
    reference = pack_numbers(Sentences(names), tmp_path / "fresh", codecs={"data": "zstd"})
    assert list(reference.manifest.dictionaries) == ["data"]
    # the dictionary is trained on entries all over the source, so only later reads may fail
    broken = Sentences(names)
    broken.fails_at = None
    real = broken.read_range
    broken.read_range = lambda start, stop: real(start, stop) if stop - start == 1 or start < 500 else _fail()
    with pytest.raises(TopoutError):
        pack_numbers(broken, tmp_path / "pack", codecs={"data": "zstd"})
    report = pack_numbers(Sentences(names), tmp_path / "pack", codecs={"data": "zstd"})
    assert report.num_shards_kept > 10
    assert contents(tmp_path / "pack") == contents(tmp_path / "fresh")
    with open_pack(tmp_path / "pack") as pack:
        assert pack.sample(999)["data"] == b"all of these begin alike and end with 999999"


def _fail():
    raise OSError(5, "Input/output error")
    yield


BAD_IMAGES = {
    "cat/empty.jpg": (b"", "it is empty"),
    "cat/text.jpg": (b"hello, world", "neither as a JPEG nor as a PNG"),
    "dog/cut.jpg": (jpeg(1)[:60], "ends before it gives a size"),
    "dog/bomb.jpg": (jpeg(2).replace(b"\x00\x1e\x00\x28", b"\xff\xff\xff\xff", 1), "decompression bomb"),
}


def test_bad_images_stop_the_packing_and_are_named(tmp_path):
    for name, (data, why) in BAD_IMAGES.items():
        source = image_folder(tmp_path / name.replace("/", "-"))
        (source / name).write_bytes(data)
        with pytest.raises(TopoutError, match=f"'{name}'") as caught:
            pack_folder(source, tmp_path / "pack", is_replacing=True)
        assert why in caught.value.why
        assert "--on-error skip" in caught.value.do


def test_bad_images_are_left_out_and_listed(tmp_path):
    source = image_folder(tmp_path / "images")
    for name, (data, _) in BAD_IMAGES.items():
        (source / name).write_bytes(data)
    report = pack_folder(source, tmp_path / "pack", on_error="skip")
    assert (report.manifest.num_samples, report.manifest.num_skipped) == (10, 4)
    listed = [json.loads(line) for line in (tmp_path / "pack" / "skipped.txt").read_text().splitlines()]
    assert {entry["name"] for entry in listed} == set(BAD_IMAGES)
    assert all(BAD_IMAGES[entry["name"]][1] in entry["reason"] for entry in listed)
    with open_pack(tmp_path / "pack") as pack:
        assert pack.column("label").tolist() == [0] * 5 + [1] * 5
        assert pack.find("cat/empty.jpg") is None
    assert check_pack(tmp_path / "pack").damages == ()


def test_what_was_skipped_is_an_error_when_gone_on_with_stop(tmp_path, monkeypatch):
    source = image_folder(tmp_path / "images")
    (source / "cat" / "empty.jpg").write_bytes(b"")
    from topout.packs.packing import packer

    with monkeypatch.context() as patch:
        patch.setattr(packer, "finish", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(TopoutError, match="cannot be written"):
            pack_folder(source, tmp_path / "pack", on_error="skip")
    with pytest.raises(TopoutError, match=r"'cat/empty\.jpg'"):
        pack_folder(source, tmp_path / "pack")
    assert pack_folder(source, tmp_path / "pack", on_error="skip").num_shards_kept == 1


@pytest.mark.parametrize("change", ["longer", "touched", "gone", "unreadable"])
def test_a_source_that_changes_while_it_is_packed_is_named(tmp_path, change, monkeypatch):
    source = file_folder(tmp_path / "files", 10, 100)
    name, listing = open_source(source)
    victim = source / "0007.bin"
    if change == "longer":
        victim.write_bytes(victim.read_bytes() + b"more")
    elif change == "touched":
        os.utime(victim, ns=(1, 1))
    elif change == "gone":
        victim.unlink()
    else:
        real = os.open

        def refuse(path, *args, **kwargs):
            if str(path).endswith("0007.bin"):
                raise PermissionError(13, "Permission denied", path)
            return real(path, *args, **kwargs)

        monkeypatch.setattr(os, "open", refuse)
    why = {"gone": "No such file", "unreadable": "Permission denied"}.get(change, "has changed since packing began")
    with pytest.raises(TopoutError, match=r"Entry 7 \('0007\.bin'\)") as caught:
        pack(listing, (name, source), tmp_path / "pack", PackOptions())
    assert why in caught.value.why
    report = pack(listing, (name, source), tmp_path / "pack", PackOptions(on_error="skip"))
    assert [(entry.number, entry.name) for entry in report.bad] == [(7, "0007.bin")]


def test_two_entries_of_one_name_are_an_error_or_the_later_is_left_out(tmp_path):
    listing = Numbers(["a", "b", "a", "c", "b"])
    with pytest.raises(TopoutError, match="Two samples are called 'a'") as caught:
        pack_numbers(listing, tmp_path / "pack")
    assert "entries 0 and 2" in caught.value.why
    report = pack_numbers(listing, tmp_path / "pack", on_error="skip")
    assert [entry.number for entry in report.bad] == [2, 4]
    with open_pack(tmp_path / "pack") as found:
        assert [found.name(number) for number in range(3)] == ["a", "b", "c"]


def test_a_sample_longer_than_a_row_can_say_is_refused(tmp_path, monkeypatch):
    # 4 GiB for real would fill the disk of a laptop; the limit is what is tested
    assert layout.LONGEST_RECORD == 2**32 - 1
    monkeypatch.setattr(shard_writer, "LONGEST_RECORD", 1000)
    source = file_folder(tmp_path / "files", 3, 100)
    (source / "large.bin").write_bytes(bytes(997))
    with pytest.raises(TopoutError, match=r"'large\.bin'") as caught:
        pack_folder(source, tmp_path / "pack")
    assert "1001 bytes long" in caught.value.why


def test_a_bad_entry_of_a_source_is_passed_on(tmp_path):
    class Holes(Numbers):
        def read_range(self, start, stop):
            for number, found in zip(range(start, stop), super().read_range(start, stop), strict=True):
                yield BadEntry(number=number, name=self.names[number], reason="a hole") if number == 3 else found

    with pytest.raises(TopoutError, match=r"Entry 3 \('d'\)") as caught:
        pack_numbers(Holes(list("abcdef")), tmp_path / "pack")
    assert caught.value.why == "a hole"


def test_nothing_to_pack_is_said(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(TopoutError, match="nothing to pack"):
        pack_folder(tmp_path / "empty", tmp_path / "pack")
    with pytest.raises(TopoutError, match="There is nothing at"):
        choose_source(tmp_path / "nowhere")
    (tmp_path / "file.xyz").write_bytes(b"?")
    with pytest.raises(TopoutError, match="of no kind that topout can pack"):
        choose_source(tmp_path / "file.xyz")


def test_all_entries_bad_is_no_pack(tmp_path):
    source = tmp_path / "images"
    (source / "a").mkdir(parents=True)
    (source / "a" / "x.jpg").write_bytes(b"")
    with pytest.raises(TopoutError, match="nothing to pack"):
        pack_folder(source, tmp_path / "pack", on_error="skip")
    assert not (tmp_path / "pack" / "pack.json").exists()


def test_two_processes_do_not_pack_to_one_place(tmp_path):
    source = file_folder(tmp_path / "files", 3, 10)
    (tmp_path / "pack" / ".packing").mkdir(parents=True)
    with open(tmp_path / "pack" / ".packing" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(TopoutError, match="is being packed already"):
            pack_folder(source, tmp_path / "pack")
    pack_folder(source, tmp_path / "pack")


def test_what_a_killed_process_left_in_a_finished_pack_goes_unless_somebody_packs_there(tmp_path):
    source = file_folder(tmp_path / "files", 3, 10)
    pack_folder(source, tmp_path / "pack")
    begun = tmp_path / "pack" / ".packing"
    begun.mkdir()
    (begun / "shard-00000.data").write_bytes(b"another's")
    with open(begun / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert pack_folder(source, tmp_path / "pack").was_there
        assert (begun / "shard-00000.data").read_bytes() == b"another's"
    assert pack_folder(source, tmp_path / "pack").was_there
    assert not begun.exists()


def test_too_little_room_is_told_before_anything_is_written(tmp_path, monkeypatch):
    from topout.packs.packing import packer

    monkeypatch.setattr(packer.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 500})())
    with pytest.raises(TopoutError, match="no room for the pack"):
        pack_folder(file_folder(tmp_path / "files", 10, 100), tmp_path / "pack")
    assert list((tmp_path / "pack").glob(".packing/*.data")) == []


def test_an_interruption_stops_all_threads(tmp_path):
    started = threading.Event()

    class Slow(Numbers):
        def read_range(self, start, stop):
            for found in super().read_range(start, stop):
                started.set()
                if start == 0 and self.was_read[-1] == 2:
                    raise KeyboardInterrupt
                yield found

    listing = Slow([f"{number:04d}" for number in range(2000)])
    with pytest.raises(KeyboardInterrupt):
        pack_numbers(listing, tmp_path / "pack")
    assert started.is_set()
    assert len(listing.was_read) < 2000
    assert threading.active_count() < 20


@given(sizes=st.lists(st.integers(0, 10_000), min_size=1, max_size=200), shard_bytes=st.integers(1, 20_000))
def test_shards_hold_contiguous_entries_and_none_is_empty(sizes, shard_bytes):
    ranges = cut(np.array(sizes, np.int64), shard_bytes)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == len(sizes)
    assert all(stop == start for (_, stop), (start, _) in pairwise(ranges))
    for start, stop in ranges:
        assert start < stop
        # all but the last entry of a shard begin within its size
        assert sum(sizes[start : stop - 1]) + 64 * (stop - 1 - start) < shard_bytes


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"on_error": "ignore"}, "--on-error cannot be ignore"),
        ({"resize": 10, "max_side": 20}, "--resize with --max-side"),
        ({"quality": 101}, "--quality cannot be 101"),
        ({"tile": 0}, "--tile cannot be 0"),
        ({"shard_bytes": 1 << 63}, "--shard-size cannot be 9223372036854775808"),
        ({"num_workers": 0}, "--workers cannot be 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, problem):
    with pytest.raises(TopoutError, match=problem):
        PackOptions(**options)


def test_an_unknown_field_is_answered_with_those_there_are(tmp_path):
    source = file_folder(tmp_path / "files", 3, 10)
    with pytest.raises(TopoutError, match="no field 'image'") as caught:
        pack_folder(source, tmp_path / "pack", codecs={"image": "zstd"})
    assert "data" in caught.value.why
