"""What cannot be read is damage with a name, not the end of the process: files cut short, disks that fail."""

import contextlib
import errno
import io
import os
import subprocess
import sys

import pytest

from tests.packs.packs import contents, file_folder, image_folder, pack_folder, small_pack
from topout.cli.main import call
from topout.packs import mapped_file
from topout.packs.check import check_pack
from topout.packs.damage import DamagedPack, DamagedSample
from topout.packs.manifest import read_manifest
from topout.packs.pack import open_pack
from topout.packs.repair import repair_files
from topout.packs.sources import choose_source, open_source, source_names
from topout.packs.targets import unpack
from topout.schema.errors import TopoutError

CUT = """
import os, sys
from topout.packs.pack import open_pack

with open_pack(sys.argv[1], on_damage="skip") as pack:
    assert pack.sample(0)["label"] == -3
    os.truncate(pack.shards[0].path, 4096)
    assert pack.samples(range(len(pack))) == []
    assert [damaged.number for damaged in pack.damage] == list(range(len(pack)))
    assert "cut short" in pack.damage[0].why
"""


def test_a_shard_that_is_cut_short_while_it_is_open_is_skipped(tmp_path):
    # records of some pages: what lies in a page that is there in part reads as zeros from a map
    manifest = small_pack(tmp_path / "pack", num_samples=500, shard_bytes=1 << 20)
    assert len(manifest.shards) == 1
    done = subprocess.run([sys.executable, "-c", CUT, tmp_path / "pack"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def bad_sector(monkeypatch):
    """Bytes of a file that the disk does not give any more: (its name, the first, the last)."""
    places = []
    real = os.pread

    def pread(fd, length, offset):
        name = os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))
        if any(name == bad and offset <= last and first < offset + length for bad, first, last in places):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, length, offset)

    monkeypatch.setattr(mapped_file.os, "pread", pread)
    return places


def test_a_bad_sector_costs_the_samples_that_lie_there(tmp_path, bad_sector):
    small_pack(tmp_path / "pack")
    with open_pack(tmp_path / "pack") as pack:
        row = pack.index[7].copy()
        bad_sector.append((pack.manifest.shards[int(row["shard"])].file, int(row["offset"]), int(row["offset"])))
        with pytest.raises(DamagedSample, match=r"(?s)Sample 7 .*the file cannot be read there"):
            pack.sample(7)
        assert pack.sample(6)["label"] == 3
    report = check_pack(tmp_path / "pack")
    assert [(damage.number, damage.why) for damage in report.damages] == [
        (7, "the file cannot be read there: Input/output error")
    ]


@pytest.mark.parametrize("place", [0, -1], ids=["header", "trailer"])
def test_a_file_whose_ends_cannot_be_read_is_damaged(tmp_path, bad_sector, place):
    [shard, *_] = small_pack(tmp_path / "pack").shards
    byte = place % shard.size_bytes
    bad_sector.append((shard.file, byte, byte))
    with open_pack(tmp_path / "pack") as pack, pytest.raises(DamagedPack, match=r"shard-00000.bin is damaged"):
        pack.sample(0)
    assert check_pack(tmp_path / "pack").files == {shard.file}


def test_footers_and_padding_are_looked_at_too(tmp_path, bad_sector):
    [shard, *_] = small_pack(tmp_path / "pack").shards
    bad_sector.append((shard.file, shard.size_bytes - 100, shard.size_bytes - 65))
    [damage] = check_pack(tmp_path / "pack").damages
    assert (damage.file, damage.number) == (shard.file, None)


@pytest.mark.parametrize("name", ["index.bin", "names.bin", "shard-00001.bin"])
def test_what_lies_on_bad_sectors_is_found_and_written_again(tmp_path, bad_sector, name):
    pack_folder(file_folder(tmp_path / "files", 12, 1000), tmp_path / "pack", shard_bytes=5000)
    before = contents(tmp_path / "pack")
    bad_sector.append((name, 4100, 4200))
    report = check_pack(tmp_path / "pack")
    assert report.files == {name}
    # the file system puts what is written anew somewhere else
    bad_sector.clear()
    (tmp_path / "pack" / name).write_bytes(bytes((tmp_path / "pack" / name).stat().st_size))
    repair_files(tmp_path / "pack", read_manifest(tmp_path / "pack"), report.files, None)
    assert contents(tmp_path / "pack") == before


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EMFILE])
@pytest.mark.parametrize("name", ["index.bin", "names.bin", "shard-00001.bin", "skipped.txt"])
def test_a_file_that_one_may_not_open_is_not_damaged(tmp_path, monkeypatch, capsys, name, number):
    source = image_folder(tmp_path / "images")
    (source / "cat" / "000.jpg").write_bytes(b"no image")
    pack_folder(source, tmp_path / "pack", shard_bytes=8000, check_images=True, on_error="skip")
    before = {path: path.stat().st_ino for path in (tmp_path / "pack").iterdir()}
    forbid(monkeypatch, tmp_path / "pack" / name, number)
    assert call(["data", "check", str(tmp_path / "pack"), "--repair"]) == 3
    problem, why, do = capsys.readouterr().err.splitlines()
    assert problem == f"{tmp_path / 'pack' / name} cannot be opened."
    assert os.strerror(number) in why and "check its permissions" in do
    assert {path: path.stat().st_ino for path in (tmp_path / "pack").iterdir()} == before


def forbid(monkeypatch, forbidden, number):
    """Also for root, whom no permission stops."""
    open_file, os_open = io.open, os.open

    def refuse_or(opening):
        def opened(path, *args, **options):
            if str(path) == str(forbidden):
                raise OSError(number, os.strerror(number), str(path))
            return opening(path, *args, **options)

        return opened

    monkeypatch.setattr(io, "open", refuse_or(open_file))
    monkeypatch.setattr(os, "open", refuse_or(os_open))


@pytest.mark.parametrize("number", [errno.EIO, errno.ELOOP])
def test_a_file_that_nobody_can_open_is_damaged(tmp_path, monkeypatch, number):
    small_pack(tmp_path / "pack")
    forbid(monkeypatch, tmp_path / "pack" / "shard-00001.bin", number)
    [damage] = check_pack(tmp_path / "pack").damages
    assert (damage.file, damage.why) == ("shard-00001.bin", f"it cannot be opened: {os.strerror(number)}")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["index.bin", "names.bin", "shard-00001.bin"])
def test_a_pipe_in_place_of_a_file_is_damage_and_not_waited_for(tmp_path, name):
    pack_folder(file_folder(tmp_path / "files", 12, 1000), tmp_path / "pack", shard_bytes=5000)
    before = contents(tmp_path / "pack")
    (tmp_path / "pack" / name).unlink()
    os.mkfifo(tmp_path / "pack" / name)
    [damage] = check_pack(tmp_path / "pack").damages
    assert (damage.file, damage.why) == (name, "it is a pipe, not a file")
    with pytest.raises(DamagedPack, match="it is a pipe"), open_pack(tmp_path / "pack") as pack:
        pack.name(11)
        pack.samples(range(12))
    repair_files(tmp_path / "pack", read_manifest(tmp_path / "pack"), {name}, None)
    assert contents(tmp_path / "pack") == before


@pytest.mark.timeout(60)
def test_a_pipe_in_place_of_pack_json_is_refused(tmp_path, capsys):
    small_pack(tmp_path / "pack")
    (tmp_path / "pack" / "pack.json").unlink()
    os.mkfifo(tmp_path / "pack" / "pack.json")
    for verb in ("check", "head", "info"):
        assert call(["data", verb, str(tmp_path / "pack")]) == 2
        assert capsys.readouterr().err.splitlines()[0] == f"{tmp_path / 'pack' / 'pack.json'} is not a file."


@pytest.mark.timeout(60)
@pytest.mark.parametrize("source", [None, *source_names()])
def test_a_pipe_is_no_source(tmp_path, source):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TopoutError, match=r"pipe is not a file\.\n  why  it is a pipe"):
        open_source(tmp_path / "pipe", source)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("0.tar", "tar"),
        ("0.h5", "hdf5"),
        ("0.tfrecord", "tfrecord"),
        ("0.parquet", "parquet"),
        ("0.npy", "numpy_files"),
        ("data.mdb", "lmdb"),
        ("index.json", "mds"),
    ],
)
def test_a_pipe_within_a_source_is_not_waited_for(tmp_path, name, source):
    os.mkfifo(tmp_path / name)
    with contextlib.suppress(TopoutError):
        choose_source(tmp_path)
    with pytest.raises(TopoutError, match=f"{name} is not a file"):
        open_source(tmp_path, source)


def test_unpacking_leaves_out_what_cannot_be_read_when_asked(tmp_path, bad_sector):
    pack_folder(file_folder(tmp_path / "files", 12, 1000), tmp_path / "pack", shard_bytes=5000)
    bad_sector.append(("shard-00001.bin", 4100, 4100))
    with open_pack(tmp_path / "pack", on_damage="skip") as pack:
        unpack(pack, tmp_path / "out", "folder")
        assert len(pack.damage) == 1
    assert len(list((tmp_path / "out").iterdir())) == 11
