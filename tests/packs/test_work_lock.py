"""One process packs or unpacks to a place; a file system that has no locks does not stand in its way."""

import errno
import fcntl
import os

import pytest

from tests.packs.packs import file_folder, pack_folder, small_pack
from topout.packs.foreign.arrival import arriving_file, arriving_folder
from topout.packs.pack import open_pack
from topout.packs.packing import work_lock
from topout.packs.packing.begun import FOLDER_NAME
from topout.packs.packing.work_lock import hold_lock
from topout.packs.targets import unpack
from topout.schema.errors import ExitCode, TopoutError


@pytest.fixture
def failing(monkeypatch):
    """Makes locking fail with that error; nothing was told yet."""
    monkeypatch.setattr(work_lock, "_told", set())

    def fail(number):
        def flock(_file, _operation):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "flock", flock)

    return fail


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_packing_goes_on_where_there_are_no_locks_and_says_so_once(tmp_path, failing, capsys, number):
    failing(number)
    source = file_folder(tmp_path / "files", 3, 10)
    pack_folder(source, tmp_path / "pack")
    pack_folder(source, tmp_path / "other")
    small_pack(tmp_path / "written")
    assert sorted(path.name for path in tmp_path.glob("*/pack.json")) == ["pack.json"] * 3
    said = capsys.readouterr().err
    assert said.count("without locks") == 1 and str(tmp_path / "pack") in said


def test_unpacking_goes_on_where_there_are_no_locks(tmp_path, failing, capsys):
    small_pack(tmp_path / "pack")
    failing(errno.ENOLCK)
    with open_pack(tmp_path / "pack") as pack:
        unpack(pack, tmp_path / "out", "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "pack"]
    assert "without locks" in capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EACCES])
def test_a_lock_that_is_held_is_another_process(tmp_path, failing, number):
    failing(number)
    with pytest.raises(TopoutError, match="is being packed already") as caught:
        pack_folder(file_folder(tmp_path / "files", 3, 10), tmp_path / "pack")
    assert caught.value.exit_code == ExitCode.ENVIRONMENT


def test_other_errors_are_told_as_they_are(tmp_path, failing):
    failing(errno.EIO)
    with pytest.raises(TopoutError, match=r"pack cannot be locked") as caught:
        pack_folder(file_folder(tmp_path / "files", 3, 10), tmp_path / "pack")
    assert (caught.value.why, caught.value.exit_code) == ("Input/output error", ExitCode.ENVIRONMENT)


def test_a_file_does_not_arrive_where_a_folder_is(tmp_path):
    """Told before hours of work, not after."""
    with pytest.raises(TopoutError, match="is a folder"), arriving_file(tmp_path):
        raise AssertionError("nothing is to be written")


@pytest.mark.parametrize("second", [arriving_file, arriving_folder])
def test_two_processes_do_not_unpack_to_one_place(tmp_path, second):
    with arriving_folder(tmp_path / "out") as first:
        (first / "a").write_text("whole")
        with pytest.raises(TopoutError, match="is being unpacked already") as caught, second(tmp_path / "out"):
            pytest.fail("both were let in")
        assert caught.value.exit_code == ExitCode.ENVIRONMENT
        assert (first / "a").read_text() == "whole"
    assert (tmp_path / "out" / "a").read_text() == "whole"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_lock_that_its_holder_has_removed_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    path, real = tmp_path / "lock", fcntl.flock
    removed = []

    def flock(file, operation):
        if not removed:
            removed.append(os.fstat(file).st_ino)
            path.unlink()
        real(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = hold_lock(path, tmp_path, "packed", "wait")
    assert removed and os.path.samestat(path.stat(), os.fstat(lock))
    os.close(lock)


def test_without_locks_a_folder_that_somebody_may_pack_in_stays(tmp_path, failing):
    source = file_folder(tmp_path / "files", 3, 10)
    pack_folder(source, tmp_path / "pack")
    begun = tmp_path / "pack" / FOLDER_NAME
    begun.mkdir()
    (begun / "shard-00000.data").write_bytes(b"hours of work")
    failing(errno.ENOSYS)
    assert pack_folder(source, tmp_path / "pack").was_there
    assert (begun / "shard-00000.data").read_bytes() == b"hours of work"
