"""What the writer refuses, it explains with its own arguments: who calls it has no command line."""

import contextlib
import errno
import os

import pytest

from tests.packs.packs import FIELDS, contents, file_folder, pack_folder, sample, small_pack
from topout.packs.pack import open_pack
from topout.packs.packing import begun, packer, shard_writer
from topout.packs.packing import writer as writer_module
from topout.packs.packing.storage_errors import cannot_write
from topout.packs.packing.writer import PackWriter
from topout.schema.errors import TopoutError


def test_a_pack_that_is_there_is_replaced_by_an_argument(tmp_path):
    small_pack(tmp_path / "pack")
    with pytest.raises(TopoutError, match="holds a pack already") as caught:
        PackWriter(tmp_path / "pack", fields=FIELDS)
    assert caught.value.do == "choose another folder, or give is_replacing=True"
    with PackWriter(tmp_path / "pack", fields=FIELDS, is_replacing=True) as writer:
        writer.add("one", sample(1))
    assert writer.manifest is not None
    assert writer.manifest.num_samples == 1


def test_a_packing_that_was_begun_is_not_written_over_unless_asked(tmp_path, monkeypatch):
    source = file_folder(tmp_path / "files", 40, 500)
    with monkeypatch.context() as patch:
        patch.setattr(packer, "finish", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        with pytest.raises(TopoutError, match="cannot be written"):
            pack_folder(source, tmp_path / "pack", shard_bytes=6000)
    packed = contents(tmp_path / "pack")
    for _ in range(2):
        with pytest.raises(TopoutError, match="was begun and did not finish") as caught:
            PackWriter(tmp_path / "pack", fields=FIELDS)
    assert contents(tmp_path / "pack") == packed
    assert "is_replacing=True" in caught.value.do
    with PackWriter(tmp_path / "pack", fields=FIELDS, is_replacing=True) as writer:
        writer.add("one", sample(1))
    assert not (tmp_path / "pack" / begun.FOLDER_NAME).exists()


def test_a_name_given_twice_is_told_without_options(tmp_path):
    with PackWriter(tmp_path / "pack", fields=FIELDS) as writer:
        writer.add("one", sample(1))
        with pytest.raises(TopoutError, match="Two samples are called 'one'") as caught:
            writer.add("one", sample(2))
    assert "--" not in str(caught.value)


def test_no_sample_at_all_is_told_without_options(tmp_path):
    with pytest.raises(TopoutError, match="nothing to pack") as caught, PackWriter(tmp_path / "pack", fields=FIELDS):
        pass
    assert caught.value.why == "no sample was added"
    assert not list((tmp_path / "pack").iterdir())


def test_a_full_disk_is_not_said_to_keep_what_was_written(tmp_path, monkeypatch):
    def full(*_arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer_module, "write_rows", full)
    with pytest.raises(TopoutError, match="cannot be written") as caught:
        with PackWriter(tmp_path / "pack", fields=FIELDS) as writer:
            writer.add("one", sample(1))
    assert caught.value.do == "free some space, then write the pack again: a writer begins anew"


def test_after_a_write_that_failed_half_way_nothing_is_published(tmp_path, monkeypatch):
    """Later records would lie elsewhere than the index says."""
    write, has_failed = shard_writer._write_all, []

    def fail_once(fd, parts):
        if not has_failed:
            has_failed.append(os.write(fd, b"".join(parts)[:10]))
            raise OSError(errno.ENOSPC, "No space left on device")
        write(fd, parts)

    monkeypatch.setattr(shard_writer, "_write_all", fail_once)
    monkeypatch.setattr(shard_writer, "_CHUNK_BYTES", 1)
    with pytest.raises(TopoutError, match="cannot be written"):
        with PackWriter(tmp_path / "pack", fields=FIELDS) as writer:
            for number in range(3):
                with contextlib.suppress(TopoutError):
                    writer.add(str(number), sample(number))
    assert not list((tmp_path / "pack").iterdir())


@pytest.mark.parametrize("is_replacing", [True, False])
def test_a_pack_that_was_whole_when_it_was_interrupted_is_put_in_place_by_the_next(tmp_path, monkeypatch, is_replacing):
    small_pack(tmp_path / "pack")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        with PackWriter(tmp_path / "pack", fields=FIELDS, is_replacing=True) as writer:
            writer.add("new", sample(1))
            patch.setattr(begun, "sync_folder", interrupt_in(tmp_path / "pack"))
    if is_replacing:
        PackWriter(tmp_path / "pack", fields=FIELDS, is_replacing=True).abandon()
    else:
        with pytest.raises(TopoutError, match="holds a pack already"):
            PackWriter(tmp_path / "pack", fields=FIELDS)
    with open_pack(tmp_path / "pack") as pack:
        assert [pack.name(number) for number in range(len(pack))] == ["new"]


def interrupt_in(folder):
    def interrupt(synced):
        if synced == folder:
            raise KeyboardInterrupt

    return interrupt


@pytest.mark.parametrize(
    ("work", "do"),
    [
        ("packing", "choose a smaller --shard-size"),
        ("writing", "give PackWriter a smaller shard_bytes"),
        ("unpacking", "lift the limit, or choose another folder"),
    ],
)
def test_a_file_too_large_is_answered_with_what_can_be_made_smaller(tmp_path, work, do):
    assert cannot_write(tmp_path, OSError(errno.EFBIG, "File too large"), work).do == do
