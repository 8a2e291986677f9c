"""A pack gives back every sample, finds it by name, and never hands out what was not written."""

import json
import os
import threading
from dataclasses import replace

import numpy as np
import pytest

from tests.packs.packs import FIELDS, contents, file_folder, flip, image_folder, pack_folder, sample, small_pack
from topout.native import bindings as native
from topout.packs.check import check_pack
from topout.packs.damage import DamagedPack, DamagedSample
from topout.packs.fields import Field
from topout.packs.manifest import read_manifest
from topout.packs.pack import open_pack
from topout.packs.pack_view import NativePack
from topout.packs.packing import packer
from topout.packs.packing.begun import FOLDER_NAME
from topout.packs.packing.writer import PackWriter
from topout.packs.repair import repair_files
from topout.schema.errors import TopoutError


@pytest.fixture
def path(tmp_path):
    small_pack(tmp_path / "pack")
    return tmp_path / "pack"


def equal(a, b):
    return list(a) == list(b) and all(np.array_equal(a[name], b[name]) for name in a)


def test_every_sample_comes_back(path):
    with open_pack(path) as pack:
        assert len(pack) == 20
        assert all(equal(pack.sample(number), sample(number)) for number in range(20))
        assert equal(pack.sample(-1), sample(19))
        assert [found["label"] for found in pack.samples([4, 4, 0])] == [1, 1, -3]
        assert bytes(pack.field_bytes(3, "caption")) == b"\xc3\xa9\n" * 3


def test_a_number_beyond_the_end_is_an_index_error(path):
    with open_pack(path) as pack:
        for read in (pack.sample, pack.record, pack.name, lambda number: pack.gather([0, number])):
            for number in (20, -21):
                with pytest.raises(IndexError):
                    read(number)


def test_samples_are_found_by_name(path):
    with open_pack(path) as pack:
        assert [pack.find(f"sample-{number}") for number in range(20)] == list(range(20))
        assert [pack.find(name) for name in ("sample", "sample-20", "", "zzz")] == [None] * 4
        assert pack.name(7) == "sample-7"


def test_names_may_hold_anything(tmp_path):
    names = ["Ω/ä b.jpg", "line\nbreak", "", "tab\t", os.fsdecode(b"not-utf8-\xff"), "日本/語", "a" * 3000]
    with PackWriter(tmp_path / "pack", fields=[Field(name="n", kind="int")]) as writer:
        for number, name in enumerate(names):
            writer.add(name, {"n": number})
    with open_pack(tmp_path / "pack") as pack:
        assert [pack.name(number) for number in range(len(names))] == names
        assert [pack.find(name) for name in names] == list(range(len(names)))


@pytest.mark.parametrize("has_library", [True, False])
def test_a_gathered_batch_is_the_samples_side_by_side(path, has_library, monkeypatch):
    if not has_library:
        monkeypatch.setattr(native, "library", lambda: None)
    numbers = [5, 19, 0, 5, -1]
    with open_pack(path) as pack:
        batch = pack.gather(numbers)
        assert list(batch) == ["pixels", "label", "weight"]
        assert batch["pixels"].shape == (5, 2, 3)
        for place, number in enumerate([5, 19, 0, 5, 19]):
            for name, values in batch.items():
                assert np.array_equal(values[place], sample(number)[name])
        assert pack.gather(numbers, ["label"])["label"].tolist() == [2, 16, -3, 2, 16]
        assert pack.gather([], ["pixels"])["pixels"].shape == (0, 2, 3)


def test_a_column_is_a_scalar_of_all_samples(path):
    with open_pack(path) as pack:
        assert pack.column("label").tolist() == [number - 3 for number in range(20)]
        for name, problem in (("caption", "is no column"), ("nothing", "no field 'nothing'")):
            with pytest.raises(TopoutError, match=problem):
                pack.column(name)
        with pytest.raises(TopoutError, match="cannot be gathered"):
            pack.gather([0], ["caption"])


def test_many_threads_may_read_one_pack(path):
    wrong = []

    def read(pack, seed):
        numbers = np.random.default_rng(seed).integers(0, 20, 300).tolist()
        wrong.extend(number for number in numbers if not equal(pack.sample(number), sample(number)))

    with open_pack(path) as pack:
        threads = [threading.Thread(target=read, args=(pack, seed)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_opening_reads_no_shard(path):
    for shard in path.glob("shard-*.bin"):
        shard.write_bytes(b"")
    with open_pack(path) as pack:
        assert len(pack) == 20
        assert pack.find("sample-7") == 7
        with pytest.raises(DamagedPack, match=r"shard-00000.bin is damaged"):
            pack.sample(0)


def test_a_shard_that_is_open_outlives_its_file(path):
    with open_pack(path) as pack:
        assert equal(pack.sample(0), sample(0))
        for shard in path.glob("shard-*.bin"):
            shard.unlink()
            shard.write_bytes(b"something else")
        assert equal(pack.sample(0), sample(0))
        with pytest.raises(DamagedPack, match="is damaged"):
            pack.sample(19)


def damaged_record(path, number):
    """Flips a bit in the middle of a sample's record."""
    with open_pack(path) as pack:
        row = pack.index[number].copy()
    flip(path / f"shard-{row['shard']:05d}.bin", int(row["offset"]) + int(row["length"]) // 2)


def test_a_damaged_sample_is_named_and_the_others_are_read(path):
    damaged_record(path, 7)
    with open_pack(path) as pack:
        with pytest.raises(DamagedSample) as caught:
            pack.sample(7)
        assert (caught.value.number, caught.value.name, caught.value.shard[:6]) == (7, "sample-7", "shard-")
        assert "Sample 7 ('sample-7')" in str(caught.value)
        assert "topout data check" in caught.value.do
        with pytest.raises(DamagedSample):
            pack.gather([6, 7, 8])
        assert [equal(pack.sample(number), sample(number)) for number in (6, 8)] == [True, True]


def test_damage_is_left_out_where_it_is_to_be_skipped(path):
    damaged_record(path, 7)
    with open_pack(path, on_damage="skip") as pack:
        assert [found["label"] for found in pack.samples([6, 7, 8])] == [3, 5]
        assert pack.gather([6, 7, 8])["pixels"].shape == (2, 2, 3)
        assert [damaged.number for damaged in pack.damage] == [7, 7]


def test_swapped_index_rows_are_seen(path):
    data = bytearray((path / "index.bin").read_bytes())
    first, second = slice(4096, 4136), slice(4136, 4176)
    data[first], data[second] = data[second], data[first]
    (path / "index.bin").write_bytes(data)
    with open_pack(path) as pack:
        for number in (0, 1):
            with pytest.raises(DamagedSample):
                pack.sample(number)
        with pytest.raises(DamagedPack, match=r"index\.bin"):
            pack.column("label")
        assert equal(pack.sample(2), sample(2))


def test_an_altered_label_is_not_handed_out(path):
    flip(path / "index.bin", 4096 + 40 * 3 + 24)
    with open_pack(path) as pack:
        with pytest.raises(DamagedSample):
            pack.gather([3], ["label"])
        assert pack.gather([2], ["label"])["label"].tolist() == [-1]


def test_repair_reads_a_row_from_the_shard_and_a_record_from_the_source(tmp_path):
    source = image_folder(tmp_path / "images")
    pack_folder(source, tmp_path / "pack")
    damaged_record(tmp_path / "pack", 4)
    flip(tmp_path / "pack" / "index.bin", 4096 + 32 * 8 + 9)
    with open_pack(tmp_path / "pack", on_damage="repair") as pack:
        for number in range(10):
            found = pack.sample(number)
            assert found == {"image": (source / pack.name(number)).read_bytes(), "label": number // 5}
        assert [damaged.number for damaged in pack.damage] == [4, 8]


def test_repair_does_not_take_what_has_changed(tmp_path):
    source = image_folder(tmp_path / "images")
    pack_folder(source, tmp_path / "pack")
    damaged_record(tmp_path / "pack", 4)
    with open_pack(tmp_path / "pack") as pack:
        (source / pack.name(4)).write_bytes((source / pack.name(3)).read_bytes())
    with open_pack(tmp_path / "pack", on_damage="repair") as pack:
        with pytest.raises(DamagedSample, match="Sample 4") as caught:
            pack.sample(4)
    assert "source does not have them" in caught.value.why


@pytest.mark.parametrize("file", ["shard-00001.bin", "index.bin", "names.bin"])
def test_each_file_is_written_again_byte_by_byte(tmp_path, file):
    pack_folder(file_folder(tmp_path / "files", 40, 500), tmp_path / "pack", shard_bytes=6000)
    path, before = tmp_path / "pack", contents(tmp_path / "pack")
    flip(path / file, (path / file).stat().st_size // 2)
    found = check_pack(path)
    assert found.files == {file}
    repair_files(path, read_manifest(path), found.files, None)
    assert contents(path) == before


def test_a_missing_shard_is_named_and_written_again(tmp_path):
    pack_folder(file_folder(tmp_path / "files", 40, 500), tmp_path / "pack", shard_bytes=6000)
    before = contents(tmp_path / "pack")
    (tmp_path / "pack" / "shard-00002.bin").unlink()
    with pytest.raises(DamagedPack, match=r"shard-00002\.bin is missing"):
        open_pack(tmp_path / "pack")
    repair_files(tmp_path / "pack", read_manifest(tmp_path / "pack"), check_pack(tmp_path / "pack").files, None)
    assert contents(tmp_path / "pack") == before


def test_a_source_that_moved_is_asked_for_and_a_wrong_one_is_refused(tmp_path):
    source = file_folder(tmp_path / "files", 40, 500)
    pack_folder(source, tmp_path / "pack", shard_bytes=6000)
    path, before = tmp_path / "pack", contents(tmp_path / "pack")
    source.rename(tmp_path / "elsewhere")
    flip(path / "shard-00001.bin", 5000)
    manifest = read_manifest(path)
    with pytest.raises(TopoutError, match=r"source .* cannot be read"):
        repair_files(path, manifest, {"shard-00001.bin"}, None)
    with pytest.raises(TopoutError, match="cannot be repaired"):
        repair_files(path, manifest, {"shard-00001.bin"}, file_folder(tmp_path / "others", 40, 400))
    repair_files(path, manifest, {"shard-00001.bin"}, tmp_path / "elsewhere")
    assert contents(path) == before


def test_repair_leaves_a_packing_that_was_begun_alone(tmp_path, monkeypatch):
    source, path = file_folder(tmp_path / "files", 40, 500), tmp_path / "pack"
    pack_folder(source, path, shard_bytes=6000)
    with monkeypatch.context() as patch:
        patch.setattr(packer, "finish", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(TopoutError, match="cannot be written"):
            pack_folder(source, path, shard_bytes=9000, is_replacing=True)
    flip(path / "shard-00001.bin", 5000)
    begun = contents(path / FOLDER_NAME)
    for _ in range(2):
        with pytest.raises(TopoutError, match="was begun and did not finish") as caught:
            repair_files(path, read_manifest(path), {"shard-00001.bin"}, None)
    assert contents(path / FOLDER_NAME) == begun
    assert f"rm -r {path / FOLDER_NAME}" in caught.value.do
    kept = pack_folder(source, path, shard_bytes=9000, is_replacing=True)
    assert kept.num_shards_kept == len(kept.manifest.shards) > 1


def test_repair_does_not_mind_what_nobody_goes_on_with(tmp_path):
    source, path = file_folder(tmp_path / "files", 40, 500), tmp_path / "pack"
    pack_folder(source, path, shard_bytes=6000)
    before = contents(path)
    flip(path / "shard-00001.bin", 5000)
    (path / FOLDER_NAME).mkdir()
    (path / FOLDER_NAME / "shard-00000.data").write_bytes(b"of a repair that was killed")
    repair_files(path, read_manifest(path), {"shard-00001.bin"}, None)
    assert contents(path) == before


def test_a_pack_from_python_has_no_source(path):
    with pytest.raises(TopoutError, match="no source to repair it from"):
        repair_files(path, read_manifest(path), {"shard-00000.bin"}, None)


def test_a_truncated_shard_is_named(path):
    shard = path / "shard-00001.bin"
    shard.write_bytes(shard.read_bytes()[:-100])
    with open_pack(path) as pack:
        with pytest.raises(DamagedPack, match=r"shard-00001\.bin is damaged") as caught:
            [pack.sample(number) for number in range(20)]
    assert "cut short" in caught.value.why


def test_shards_of_two_packs_are_not_mixed(path, tmp_path):
    with PackWriter(tmp_path / "other", fields=FIELDS, shard_bytes=4096 + 120) as writer:
        for number in range(20):
            writer.add(f"sample-{number}", {**sample(number), "label": 0})
    (tmp_path / "other" / "shard-00001.bin").replace(path / "shard-00001.bin")
    with open_pack(path) as pack:
        with pytest.raises(DamagedPack) as caught:
            [pack.sample(number) for number in range(20)]
    assert "two packs are mixed" in caught.value.why


def test_two_shards_that_changed_places_are_seen(path):
    (path / "shard-00000.bin").rename(path / "kept")
    (path / "shard-00001.bin").rename(path / "shard-00000.bin")
    (path / "kept").rename(path / "shard-00001.bin")
    with open_pack(path) as pack, pytest.raises(DamagedPack):
        pack.sample(0)


def test_a_later_version_is_named_before_anything_else(path):
    text = (path / "pack.json").read_text()
    (path / "pack.json").write_text(text.replace('"version": 1', '"version": 2'))
    with pytest.raises(TopoutError, match="pack of version 2"):
        open_pack(path)


def test_an_edited_manifest_is_refused(path):
    text = (path / "pack.json").read_text()
    (path / "pack.json").write_text(text.replace("caption", "kaption"))
    with pytest.raises(DamagedPack, match=r"pack\.json is damaged"):
        open_pack(path)


@pytest.mark.parametrize("entry", ["index", "names", "shards"])
def test_a_manifest_that_names_a_file_elsewhere_is_refused(path, entry):
    """Its digest is right: whoever wrote it meant to have that file read, or replaced by a staged copy."""
    manifest = read_manifest(path)
    first, *others = manifest.shards if entry == "shards" else [getattr(manifest, entry)]
    strange = replace(first, file="../../.bashrc")
    changed = replace(manifest, **{entry: (strange, *others) if entry == "shards" else strange})
    (path / "pack.json").write_bytes(changed.encode())
    with pytest.raises(DamagedPack) as caught:
        read_manifest(path)
    assert "'../../.bashrc', which no pack has" in caught.value.why


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"dtype": "|O", "shape": (2,)}, "arrays of object cannot be packed"),
        ({"dtype": ">u2"}, "'>u2', which no pack has"),
        ({"shape": (-2, 3)}, "its shape is (-2, 3)"),
        ({"shape": (1 << 32, 1 << 32)}, "of 4 GiB at most"),
        ({"name": "label"}, "each field needs a name of its own"),
    ],
)
def test_a_manifest_with_fields_that_no_writer_stores_is_refused(path, change, why):
    """Its digest is right: a batch of objects would be filled with addresses that whoever wrote it has chosen."""
    manifest = read_manifest(path)
    first, *others = manifest.fields
    (path / "pack.json").write_bytes(replace(manifest, fields=(replace(first, **change), *others)).encode())
    with pytest.raises(DamagedPack, match=r"pack\.json is damaged") as caught:
        open_pack(path)
    assert why in caught.value.why


def test_a_codec_that_is_not_installed_is_no_damage(path):
    manifest = read_manifest(path)
    *others, caption = manifest.fields
    (path / "pack.json").write_bytes(replace(manifest, fields=(*others, replace(caption, codec="rare"))).encode())
    assert read_manifest(path).fields[-1].codec == "rare"
    with pytest.raises(TopoutError, match=r"There is no rare"):
        open_pack(path)


def test_the_library_fills_no_objects(path):
    with open_pack(path) as pack:
        view = NativePack(pack, native.library())
        with pytest.raises(ValueError, match="holds objects"):
            view.gather(np.array([0]), (replace(pack.fields[0], dtype="|O"),))


def test_a_field_asked_for_twice_is_gathered_once(path, monkeypatch):
    """Of two arrays of one name the first would be gone while the library fills it."""
    real, places = native.Library.gather, []
    monkeypatch.setattr(native.Library, "gather", lambda *given: places.append(len(given[3])) or real(*given))
    with open_pack(path) as pack:
        assert np.array_equal(pack.gather([3], ["pixels", "pixels"])["pixels"], [sample(3)["pixels"]])
    assert places == [1]


def test_what_is_no_pack_is_told_from_one_that_is_not_finished(tmp_path):
    with pytest.raises(TopoutError, match="is not a pack") as caught:
        open_pack(tmp_path)
    assert "no pack.json" in caught.value.why
    (tmp_path / ".packing").mkdir()
    with pytest.raises(TopoutError, match="is not a pack yet"):
        open_pack(tmp_path)
    with pytest.raises(TopoutError, match="no policy 'maybe'"):
        open_pack(tmp_path, on_damage="maybe")


def test_the_manifest_has_no_time_and_no_place_but_the_source(path):
    manifest = json.loads((path / "pack.json").read_text())
    assert list(manifest) == [
        "format", "version", "pack_id", "num_samples", "fields", "classes", "index", "names", "shards", "source",
        "options", "num_skipped", "skipped", "dictionaries", "digest",
    ]  # fmt: skip


def test_a_writer_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), PackWriter(tmp_path / "pack", fields=FIELDS) as writer:
        writer.add("a", sample(1))
        raise RuntimeError
    assert list((tmp_path / "pack").iterdir()) == []


def test_a_writer_refuses_what_it_cannot_take(tmp_path):
    with pytest.raises(TopoutError, match="nothing to pack"), PackWriter(tmp_path / "empty", fields=FIELDS):
        pass
    with PackWriter(tmp_path / "pack", fields=FIELDS) as writer:
        writer.add("a", sample(1))
        with pytest.raises(TopoutError, match="Two samples are called 'a'"):
            writer.add("a", sample(2))
        with pytest.raises(TopoutError, match=r"Sample 1 \('b'\) does not fit"):
            writer.add("b", {**sample(2), "caption": 5})
        with pytest.raises(TopoutError, match="is being packed already"):
            PackWriter(tmp_path / "pack", fields=FIELDS)
    with pytest.raises(TopoutError, match="holds a pack already"):
        PackWriter(tmp_path / "pack", fields=FIELDS)
    with open_pack(tmp_path / "pack") as pack:
        assert len(pack) == 1


def test_a_writer_on_a_full_disk_says_so(tmp_path, monkeypatch):
    def refuse(_fd, _parts):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", refuse)
    with pytest.raises(TopoutError, match="cannot be written") as caught:
        small_pack(tmp_path / "pack")
    assert caught.value.why == "the disk is full"


def test_a_pack_may_be_read_from_copies_elsewhere(path, tmp_path):
    (tmp_path / "fast").mkdir()
    for shard in list(path.glob("shard-*.bin")):
        shard.rename(tmp_path / "fast" / shard.name)

    def locate(name):
        return (tmp_path / "fast" if name.startswith("shard-") else path) / name

    with open_pack(path, locate=locate) as pack:
        assert equal(pack.sample(19), sample(19))


def test_records_of_a_batch_are_those_read_one_by_one_and_damage_is_named(tmp_path):
    blobs = [bytes([number]) * (300_000 + number) for number in range(12)]
    with PackWriter(tmp_path / "pack", fields=[Field(name="data", kind="bytes")], shard_bytes=1 << 20) as writer:
        for number, blob in enumerate(blobs):
            writer.add(str(number), {"data": blob})
    numbers = [7, 0, 11, 3, 7, 5, 2, 9]
    with open_pack(tmp_path / "pack") as pack:
        assert pack.records(numbers) == [pack.record(number) for number in numbers]
        assert [bytes(record[4:]) for record in pack.records(numbers)] == [blobs[number] for number in numbers]
        row = pack.index[3]
        place = (pack.shards[row["shard"]].path, int(row["offset"]) + 1000)
    with place[0].open("r+b") as file:
        file.seek(place[1])
        file.write(b"x")
    with open_pack(tmp_path / "pack") as pack, pytest.raises(DamagedSample, match="Sample 3"):
        pack.records(numbers)
    with open_pack(tmp_path / "pack", on_damage="skip") as pack:
        assert len(pack.records(numbers)) == len(numbers) - 1


@pytest.mark.parametrize(
    "read",
    [
        lambda pack: pack.sample(0),
        lambda pack: pack.samples([0]),
        lambda pack: pack.name(0),
        lambda pack: pack.find("sample-0"),
        lambda pack: pack.gather([0]),
        lambda pack: pack.records([0]),
        lambda pack: pack.column("label"),
        lambda pack: pack.field_bytes(0, "caption"),
    ],
)
def test_a_closed_pack_says_that_it_is_closed(path, read):
    with open_pack(path) as pack:
        read(pack)
    with pytest.raises(TopoutError, match="is closed"):
        read(pack)
