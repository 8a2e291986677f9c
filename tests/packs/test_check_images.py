"""`--check-images`: which samples a pack has depends on it, so packs with and without it are two."""

import pytest

from tests.packs.packs import contents, flip, image_folder, jpeg, pack_folder
from topout.feed.serve.check import look
from topout.feed.serve.source_check import refuse_changed_source
from topout.packs.manifest import read_manifest
from topout.packs.pack import open_pack
from topout.packs.packing import packer
from topout.packs.packing.options import PackOptions
from topout.packs.repair import options_of, repair_files
from topout.packs.source_comparison import compare_with_source
from topout.schema.errors import TopoutError


def with_a_cut_one(path):
    """Images whose headers are all whole, while one of them does not decode."""
    source = image_folder(path)
    (source / "cat" / "cut.jpg").write_bytes(jpeg(5, (200, 200))[:2000])
    return source


def test_a_pack_that_was_made_without_looking_does_not_count_as_looked_at(tmp_path):
    source = with_a_cut_one(tmp_path / "images")
    pack_folder(source, tmp_path / "pack")
    with pytest.raises(TopoutError, match="holds a pack already"):
        pack_folder(source, tmp_path / "pack", check_images=True)
    with pytest.raises(TopoutError, match=r"'cat/cut\.jpg'"):
        pack_folder(source, tmp_path / "pack", check_images=True, is_replacing=True)


def test_it_is_recorded_where_it_was_asked_for_and_packs_without_it_are_what_they_were(tmp_path):
    source = image_folder(tmp_path / "images")
    assert pack_folder(source, tmp_path / "plain").manifest.options == {}
    pack_folder(source, tmp_path / "checked", check_images=True)
    assert read_manifest(tmp_path / "checked").options == {"check_images": 1}
    assert pack_folder(source, tmp_path / "checked", check_images=True).was_there


def test_what_did_not_decode_is_left_out_again_by_repair_and_comparison(tmp_path):
    source = with_a_cut_one(tmp_path / "images")
    pack_folder(source, tmp_path / "pack", check_images=True, on_error="skip")
    manifest, before = read_manifest(tmp_path / "pack"), contents(tmp_path / "pack")
    assert (manifest.num_samples, manifest.num_skipped) == (10, 1)
    flip(tmp_path / "pack" / "shard-00000.bin", 4200)
    repair_files(tmp_path / "pack", manifest, {"shard-00000.bin"}, None)
    assert contents(tmp_path / "pack") == before
    assert compare_with_source(tmp_path / "pack", source).differences == ()


def test_nothing_is_decoded_again_where_nothing_was_left_out(tmp_path):
    report = pack_folder(image_folder(tmp_path / "images"), tmp_path / "pack", check_images=True)
    assert options_of(report.manifest).check_images is False


def test_looking_at_images_does_not_hinder_the_look_at_the_room(tmp_path, monkeypatch):
    monkeypatch.setattr(packer.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 500})())
    with pytest.raises(TopoutError, match="no room for the pack"):
        pack_folder(image_folder(tmp_path / "images"), tmp_path / "pack", check_images=True)
    assert not PackOptions(check_images=True, resize=8).keeps_sizes


def test_samples_that_were_looked_at_are_still_the_files(tmp_path):
    source = image_folder(tmp_path / "images")
    assert pack_folder(source, tmp_path / "checked", check_images=True).manifest.changes == {}
    assert pack_folder(source, tmp_path / "small", check_images=True, resize=8).manifest.changes == {"resize": 8}
    _, notes = look([str(tmp_path / "checked")])
    assert notes == []
    changed = next(source.rglob("*.jpg"))
    changed.write_bytes(changed.read_bytes() + b"more")
    with open_pack(tmp_path / "checked") as pack, pytest.raises(TopoutError, match="has changed since"):
        refuse_changed_source(pack, str(source))
