"""A staged pack gives what the pack gives, from near where it can, from afar where it must."""

import fcntl
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.feed.staging.packs import contents, course_of, eventually, make_pack
from topout.epoch.order import BlockShuffled
from topout.feed.staging.folder import Word, try_lock
from topout.feed.staging.staged_pack import open_staged
from topout.feed.staging.stager import StagingOptions
from topout.native.bindings import library
from topout.packs.damage import DamagedPack, DamagedSample
from topout.packs.pack import open_pack
from topout.packs.pack_view import NativePack
from topout.schema.errors import TopoutError


@pytest.fixture
def source(tmp_path):
    return make_pack(tmp_path / "slow")


@pytest.fixture
def near(tmp_path):
    return tmp_path / "near"


def total_bytes(folder):
    return sum(path.stat().st_size for path in folder.glob("shard-*.bin"))


def is_free(path):
    lock = try_lock(path)
    if lock is not None:
        lock.release()
    return lock is not None


def read_epochs(pack, course, epochs, batch=4):
    """Reads as a rank does, in the course's order, telling how far it is; every sample is compared."""
    for epoch in epochs:
        for start in range(0, len(pack), batch):
            positions = np.arange(start, min(start + batch, len(pack)))
            for number in course.order_of(epoch).at(positions).tolist():
                assert pack.sample(number) == {"data": contents(number), "label": number % 7}
            pack.advance(course.time(epoch, start + len(positions)))


def test_without_staging_all_is_read_from_the_slow_path(source, near):
    with open_staged(source, root=near) as pack, open_pack(source) as plain:
        assert len(pack) == 60
        assert pack.samples(range(60)) == plain.samples(range(60))
        assert (pack.name(3), pack.find("sample-3")) == ("sample-3", 3)
        assert pack.column("label").tolist() == [number % 7 for number in range(60)]
        assert pack.gather([5, 3])["label"].tolist() == [5, 3]
        assert bytes(pack.field_bytes(9, "data")) == contents(9)
        assert not pack.is_near


def test_a_pack_that_is_open_is_not_taken_for_abandoned(source, near, tmp_path):
    other = make_pack(tmp_path / "other", num_samples=10)
    with open_staged(source, root=near) as pack:
        validation = open_staged(other, root=near)
        pack.staging_folder.remove_abandoned(1 << 60)
        assert validation.sample(3)["data"] == contents(3)
        validation.follow()
        validation.close()
        pack.staging_folder.remove_abandoned(1 << 60)
        assert not validation.staging_folder.path.exists()


def test_a_folder_of_which_one_lock_cannot_be_taken_is_left_without_any(source, near):
    other = near / "other"
    (other / "readers").mkdir(parents=True)
    (other / "lock").mkdir()
    with open_staged(source, root=near) as pack:
        pack.staging_folder.remove_abandoned(1 << 60)
    assert (other / "in-use").exists()
    assert is_free(other / "in-use")


def test_a_folder_that_another_process_deletes_just_now_is_no_obstacle(source, near, monkeypatch):
    gone, abandoned, is_dir = near / "gone", near / "abandoned", Path.is_dir
    for folder in (gone, abandoned / "readers"):
        folder.mkdir(parents=True)

    def looked_at_before(path):
        found = is_dir(path)
        if found and path == gone:
            gone.rmdir()
        return found

    with open_staged(source, root=near) as pack:
        monkeypatch.setattr(Path, "is_dir", looked_at_before)
        pack.staging_folder.remove_abandoned(1 << 60)
    assert not gone.exists()
    assert not abandoned.exists()


def test_who_opens_a_pack_while_its_folder_is_deleted_makes_it_anew(source, near, tmp_path, monkeypatch):
    other = make_pack(tmp_path / "other", num_samples=10)
    open_staged(other, root=near).close()
    opened, delete = [], shutil.rmtree

    def opened_meanwhile(folder, **options):
        monkeypatch.setattr(shutil, "rmtree", delete)
        # whichever file goes first
        (folder / "in-use").unlink()
        opened.append(open_staged(other, root=near))
        delete(folder, **options)

    with open_staged(source, root=near) as pack:
        monkeypatch.setattr(shutil, "rmtree", opened_meanwhile)
        pack.staging_folder.remove_abandoned(1 << 60)
    (reopened,) = opened
    assert (reopened.staging_folder.path / "in-use").exists()
    reopened.close()


def test_what_a_killed_process_did_not_finish_deleting_goes(source, near):
    (near / ".deleting-1").mkdir(parents=True)
    (near / ".deleting-1" / "arena.bin").write_bytes(bytes(10))
    with open_staged(source, root=near) as pack:
        pack.staging_folder.remove_abandoned(1 << 60)
    assert not (near / ".deleting-1").exists()


def test_a_lock_of_a_folder_that_was_made_anew_meanwhile_does_not_count(source, near, tmp_path, monkeypatch):
    """Two processes look for room: the second has opened the lock when the first deletes the folder."""
    other = make_pack(tmp_path / "other", num_samples=10)
    open_staged(other, root=near).close()
    opened, lock = [], fcntl.flock

    def deleted_and_opened_anew_before(fd, how):
        monkeypatch.setattr(fcntl, "flock", lock)
        pack.staging_folder.remove_abandoned(1 << 60)
        opened.append(open_staged(other, root=near))
        lock(fd, how)

    with open_staged(source, root=near) as pack:
        monkeypatch.setattr(fcntl, "flock", deleted_and_opened_anew_before)
        pack.staging_folder.remove_abandoned(1 << 60)
    (reopened,) = opened
    assert (reopened.staging_folder.path / "in-use").exists()
    reopened.close()


def test_a_pack_that_cannot_be_opened_is_not_in_use(source, near):
    with open_staged(source, root=near) as pack:
        folder = pack.staging_folder.path
        assert not is_free(folder / "in-use")
    with (folder / "index.bin").open("r+b") as index:
        index.write(bytes(8))
    with pytest.raises(DamagedPack):
        open_staged(source, root=near)
    assert is_free(folder / "in-use")


def test_a_pack_that_fits_is_staged_whole_and_is_a_pack(source, near):
    with open_staged(source, root=near) as pack:
        pack.follow(course_of(60), StagingOptions(budget_bytes=1 << 20))
        eventually(lambda: pack.is_near)
        assert pack.samples(range(60)) == [{"data": contents(i), "label": i % 7} for i in range(60)]
        counts = pack.counts()
        assert (counts.hits, counts.misses, counts.hit_share) == (60, 0, 1.0)
        assert counts.hit_bytes == sum(len(contents(i)) + 4 for i in range(60))
        eventually(lambda: pack.staging()["staged_bytes"] == total_bytes(source))
        folder = pack.staging_folder.path
    for path in source.glob("*.bin"):
        assert (folder / path.name).read_bytes() == path.read_bytes()
    with open_pack(folder) as plain:
        assert plain.sample(59)["data"] == contents(59)


def test_samples_are_staged_where_the_pack_does_not_fit(source, near):
    course = course_of(60)
    with open_staged(source, root=near) as pack:
        pack.follow(course, StagingOptions(budget_bytes=60_000))
        eventually(lambda: pack.staging()["num_staged"] > 10)
        read_epochs(pack, course, range(4))
        assert pack.counts().hits > 0
        assert pack.counts().hits + pack.counts().misses == 240
        assert (pack.staging_folder.arena).stat().st_size <= 60_000
        assert pack.staging()["num_evicted"] > 0
        assert not list(pack.staging_folder.path.glob("shard-*"))


def test_a_reader_that_waits_for_the_stager_finds_everything_near(source, near):
    """With time to fetch ahead, only what is read before anything was fetched comes from afar."""
    course = course_of(60, batch_size=1)
    with open_staged(source, root=near) as pack:
        pack.follow(course, StagingOptions(budget_bytes=60_000))
        eventually(lambda: pack.staging()["num_staged"] > 0)
        numbers = [course.order_of(time // 60).at(np.array([time % 60])).tolist()[0] for time in range(181)]
        for time in range(180):
            assert pack.sample(numbers[time])["data"] == contents(numbers[time])
            eventually(lambda: pack._near_samples.read(numbers[time + 1], 1) is not None)  # noqa: B023
            pack.advance(time + 1)
        assert pack.counts().misses <= 1
        assert pack.counts().hits == 180 - pack.counts().misses
        # a third of the samples or so has room from one epoch to the next and was not fetched again
        assert pack.staging()["num_staged"] <= 180 - 2 * 15


def test_shards_come_and_go_with_an_order_by_blocks(source, near):
    with open_staged(source, root=near) as pack:
        starts = [int(start) for start in pack.starts]
        course = replace(
            course_of(60), order_of=lambda epoch: BlockShuffled(seed=1, epoch=epoch, starts=starts, window=1)
        )
        budget_bytes = 4 * max(entry.size_bytes for entry in pack.manifest.shards)
        pack.follow(course, StagingOptions(budget_bytes=budget_bytes, unit="shards"))
        eventually(lambda: pack.staging()["num_staged"] > 0)
        read_epochs(pack, course, range(2))
        eventually(lambda: pack.staging()["num_evicted"] > 0)
        pack.leave()
        assert 0 < total_bytes(pack.staging_folder.path) <= budget_bytes


def test_a_shard_that_was_thrown_away_is_let_go_when_the_last_batch_with_it_is_over(source, near):
    with open_staged(source, root=near) as pack:
        pack.follow(course_of(60), StagingOptions(unit="shards"))
        eventually(lambda: pack.is_near)
        pack.leave()
        view = NativePack(pack, library(), is_mapped=False)
        view.open_shards(np.arange(60))
        under_way = list(view.files.values())
        (pack.staging_folder.path / pack.manifest.shards[1].file).unlink()
        pack._state.copies[1] = 0
        pack._state[Word.NUM_EVICTED] = pack._state[Word.NUM_EVICTED] + 1
        view.open_shards(np.arange(60))
        assert sorted({*range(len(pack.shards))} - set(view.files)) == [1]
        assert view._descriptors[1] == -1
        fd = under_way[1].descriptor.number
        os.fstat(fd)
        del under_way
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_a_shard_that_goes_while_it_is_opened_is_read_from_afar(source, near):
    with open_staged(source, root=near) as pack:
        pack._state.copies[0] = 1
        view = NativePack(pack, library(), is_mapped=False)
        view.open_shards(np.array([0]))
        assert not view.files
        assert pack.sample(0)["data"] == contents(0)


def holder_of(*packs):
    return next(pack._stager for pack in packs if pack._stager.is_holder)


def test_ranks_of_a_node_share_one_stager(source, near):
    with open_staged(source, root=near) as first, open_staged(source, root=near) as second:
        options = StagingOptions(budget_bytes=1 << 20)
        for rank, pack in enumerate((first, second)):
            pack.follow(course_of(60, world_size=2, ranks=(0, 1)), options, rank=rank)
        eventually(lambda: first.is_near and second.is_near)
        assert [first._stager.is_holder, second._stager.is_holder].count(True) == 1
        eventually(lambda: first.staging()["staged_bytes"] == total_bytes(source))
        holder, other = (first, second) if first._stager.is_holder else (second, first)
        holder.leave()
        eventually(lambda: other._stager.is_holder)
        assert other.sample(7)["data"] == contents(7)


def test_what_is_needed_by_a_slow_rank_stays_although_a_fast_one_has_passed_it(source, near):
    course = course_of(60, world_size=2, ranks=(0, 1))
    with open_staged(source, root=near) as slow, open_staged(source, root=near) as fast:
        options = StagingOptions(budget_bytes=60_000)
        slow.follow(course, options, rank=0)
        fast.follow(course, options, rank=1)
        eventually(lambda: slow.staging()["num_staged"] >= 12)
        first = course.order_of(0).at(np.arange(8, 16)).tolist()
        eventually(lambda: all(slow._near_samples.read(n, 1) is not None for n in first))
        fast.advance(course.time(0, 56))
        num_looks = holder_of(slow, fast).num_looks
        eventually(lambda: holder_of(slow, fast).num_looks > num_looks + 2)
        assert all(slow._near_samples.read(n, 1) is not None for n in first)
        slow.advance(course.time(0, 56))
        eventually(lambda: not all(slow._near_samples.read(n, 1) is not None for n in first))


def test_a_damaged_near_copy_is_passed_over_and_thrown_away(source, near):
    with open_staged(source, root=near) as pack:
        pack.follow(course_of(60), StagingOptions(budget_bytes=1 << 20))
        eventually(lambda: pack.is_near)
        row = pack.index[11]
        copy = pack.staging_folder.path / pack.manifest.shards[int(row["shard"])].file
        with copy.open("r+b") as file:
            file.seek(int(row["offset"]) + 30)
            byte = file.read(1)[0]
            file.seek(int(row["offset"]) + 30)
            file.write(bytes([byte ^ 1]))
        assert pack.sample(11)["data"] == contents(11)
        assert pack.counts().misses == 1
        # fetched again from the slow path, whole
        eventually(lambda: copy.exists() and copy.read_bytes() == (source / copy.name).read_bytes())


def test_a_near_copy_that_is_cut_short_while_it_is_open_is_thrown_away(source, near):
    with open_staged(source, root=near) as pack:
        pack.follow(course_of(60), StagingOptions(budget_bytes=1 << 20))
        eventually(lambda: pack.is_near)
        assert pack.sample(11)["data"] == contents(11)
        copy = pack.staging_folder.path / pack.manifest.shards[int(pack.index[11]["shard"])].file
        os.truncate(copy, 4096)
        assert pack.sample(11)["data"] == contents(11)
        assert pack.counts().misses == 1
        eventually(lambda: copy.exists() and copy.read_bytes() == (source / copy.name).read_bytes())


def test_damage_in_the_slow_path_is_named_and_not_staged(source, near):
    with open_pack(source) as plain:
        row = plain.index[11].copy()
        shard = source / plain.manifest.shards[int(row["shard"])].file
    data = bytearray(shard.read_bytes())
    data[int(row["offset"]) + 30] ^= 1
    shard.write_bytes(data)
    with open_staged(source, root=near) as pack:
        pack.follow(course_of(60), StagingOptions(budget_bytes=1 << 20))
        eventually(lambda: pack.staging()["num_given_up"] > 0)
        with pytest.raises(DamagedSample, match=r"Sample 11 \('sample-11'\) of .*slow is damaged"):
            pack.sample(11)
        assert pack.sample(12)["data"] == contents(12)
        assert not (pack.staging_folder.path / shard.name).exists()


def test_going_back_to_an_earlier_epoch_is_followed(source, near):
    course = course_of(60)
    with open_staged(source, root=near) as pack:
        pack.follow(course, StagingOptions(budget_bytes=60_000))
        read_epochs(pack, course, range(2))
        pack.advance(course.time(0, 0))
        wanted = course.order_of(0).at(np.arange(6, 10)).tolist()
        eventually(lambda: all(pack._near_samples.read(n, 1) is not None for n in wanted))
        read_epochs(pack, course, range(1))


def test_unfinished_copies_and_state_of_another_time_are_no_obstacle(source, near):
    with open_staged(source, root=near) as pack:
        folder = pack.staging_folder
    (folder.path / "shard-00000.tmp").write_bytes(b"half")
    (folder.path / "shard-00001.bin").write_bytes(b"of another size")
    folder.arena.write_bytes(b"rubbish")
    (folder.readers / "listing-60.rank-0").write_bytes(b"")
    with open_staged(source, root=near) as pack:
        pack.follow(None, StagingOptions(budget_bytes=1 << 20), rank=0)
        eventually(lambda: pack.is_near)
        assert pack.samples(range(60)) == [{"data": contents(i), "label": i % 7} for i in range(60)]
    assert not list(folder.path.glob("*.tmp"))
    assert not folder.arena.exists()


def test_an_arena_of_other_measures_is_replaced_under_its_readers(source, near):
    course = course_of(60)
    with open_staged(source, root=near) as pack:
        pack.follow(course, StagingOptions(budget_bytes=60_000))
        eventually(lambda: pack.staging()["num_staged"] > 5)
        pack.leave()
        with open_staged(source, root=near) as other:
            other.follow(course, StagingOptions(budget_bytes=45_000))
            eventually(lambda: other._stager.is_holder and other._state[Word.BUDGET_BYTES] <= 45_000)
            read_epochs(pack, course, range(2))
            read_epochs(other, course, range(2))


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], check=True)
    yield folder / "near"
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.lab
@pytest.mark.parametrize("unit", ["shards", "samples"])
def test_a_full_disk_makes_the_budget_smaller_and_is_said_once(tmp_path, small_disk, unit, caplog):
    source = make_pack(tmp_path / "large", num_samples=200)
    course = course_of(200)
    assert total_bytes(source) > 300_000
    with open_staged(source, root=small_disk) as pack:
        pack.follow(course, StagingOptions(budget_bytes=1 << 30, unit=unit))
        eventually(lambda: pack.staging()["num_staged"] > 3 and 0 < pack.staging()["budget_bytes"] < 256_000)
        read_epochs(pack, course, range(2))
        assert pack.counts().hits > 0
    assert [record.message for record in caplog.records if "disk is full" in record.message] == [
        record.message for record in caplog.records
    ]
    assert len(caplog.records) == 1


@pytest.mark.lab
def test_what_a_gone_job_staged_of_another_pack_makes_room(tmp_path, small_disk):
    for number in (1, 2):
        source = make_pack(tmp_path / f"pack-{number}", num_samples=60 + number)
        with open_staged(source, root=small_disk) as pack:
            pack.follow(None, StagingOptions(budget_bytes=200_000))
            eventually(lambda: pack.is_near)
    assert len([path for path in small_disk.iterdir() if path.is_dir()]) == 1


@pytest.mark.lab
def test_a_folder_of_another_user_is_refused(source, tmp_path):
    strange = tmp_path / "strange"
    strange.mkdir()
    os.chown(strange, 12345, 12345)
    with pytest.raises(TopoutError, match="is not safe to stage in"):
        open_staged(source, root=strange)


def test_a_folder_without_a_pack_is_named(tmp_path, near):
    with pytest.raises(TopoutError, match="is not a pack that can be read"):
        open_staged(tmp_path / "nothing", root=near)


def test_a_missing_shard_is_named(source, near):
    (source / "shard-00001.bin").unlink()
    with open_staged(source, root=near) as pack:
        with pytest.raises(TopoutError, match=r"shard-00001.bin cannot be read"):
            pack.sample(int(pack.starts[1]))


def test_a_staged_pack_outlives_the_slow_path(source, near):
    with open_staged(source, root=near) as pack:
        pack.follow(None, StagingOptions(budget_bytes=1 << 20))
        eventually(lambda: pack.is_near)
        shutil.rmtree(source)
        assert pack.sample(33)["data"] == contents(33)


def test_forked_workers_read_and_are_counted(source, near):
    with open_staged(source, root=near) as pack:
        pack.follow(None, StagingOptions(budget_bytes=1 << 20))
        eventually(lambda: pack.is_near)
        child = os.fork()
        if child == 0:
            os._exit(0 if pack.sample(5)["data"] == contents(5) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert pack.sample(6)["data"] == contents(6)
        assert pack.counts().hits == 2


def test_a_worker_that_outlives_its_rank_does_not_keep_the_lock(source, near, tmp_path):
    program = f"""
import os, signal, time
from pathlib import Path
from topout.feed.staging.staged_pack import open_staged
pack = open_staged({str(source)!r}, root=Path({str(near)!r}))
pack.follow(None)
while not pack.is_near: time.sleep(0.01)
child = os.fork()
if child == 0:
    time.sleep(60)
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as rank:
        worker = int(rank.stdout.readline())
    try:
        with open_staged(source, root=near) as pack:
            pack.follow(None)
            eventually(lambda: pack._stager.is_holder)
    finally:
        os.kill(worker, 9)


def test_a_script_that_ends_without_closing_ends_quietly(source, near):
    program = f"""
import time
from pathlib import Path
from topout.feed.staging import origin, staged_pack
class Slow(origin.FolderOrigin):
    def read(self, *where):
        time.sleep(0.05)
        return super().read(*where)
pack = staged_pack.open_staged({str(source)!r}, root=Path({str(near)!r}))
pack.origin = Slow(Path({str(source)!r}))
pack.follow(None)
while pack.staging()["num_staged"] == 0: time.sleep(0.01)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(TopoutError, match="no staging by 'files'"):
        StagingOptions(unit="files")
    with pytest.raises(TopoutError, match=r"window of 0\.9"):
        StagingOptions(window_share=0.9)
