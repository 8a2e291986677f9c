"""One folder that others use too: those that only read, those that save beside it, and what crashes have left."""

import errno
import fcntl
import os
import pkgutil
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.train.checkpoint.conftest import MakeTraining, Training
from topout.record import before_leaving
from topout.schema.errors import TopoutError
from topout.train.checkpoint import checkpoints, files, manifest, to_safetensors
from topout.train.checkpoint.lock import Lock
from topout.train.checkpoint.store import Store


def steps(tmp_path: Path) -> list[int]:
    return Store(tmp_path / "checkpoints").steps()


def lying_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("has_locks", [True, False])
def test_leftovers_of_a_crash_are_never_read_and_go_with_the_first_save(
    training: MakeTraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_locks: bool
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    if not has_locks:
        monkeypatch.setattr(fcntl, "flock", no_locks)
    training().take(2).close()
    folder = tmp_path / "checkpoints"
    leftovers = {".writing-step-000000000004-abcd", ".deleting-step-000000000001"}
    for name in leftovers:
        (folder / name).mkdir()
    again = training()
    restored = again.checkpoints.restore()
    assert restored is not None
    assert restored.step == 2
    # whoever only reads does not know whether another is writing it
    assert leftovers <= lying_in(folder)
    again.take(2).close()
    assert lying_in(folder) == {"step-000000000002", "step-000000000004"}


def test_a_lock_that_its_holder_removes_just_when_another_takes_it_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (Lock(tmp_path / "lock") for _ in range(3))
    assert first.take() and not second.take()
    lock = fcntl.flock

    def released_before(fd: int, how: int) -> None:
        monkeypatch.undo()
        first.release()
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", released_before)
    assert second.take()
    assert not third.take()
    second.release()
    assert list(tmp_path.iterdir()) == []


WITH_A_CHILD = """
import os
import sys

import torch
import torch.distributed as dist

from topout.train.checkpoint import Checkpoints, writing
from topout.train.checkpoint.lock import Lock
from topout.train.leaving import leave_at_exit
from topout.train.place import alone

folder, how = sys.argv[1:]
rank, write = os.getpid(), writing.write_image
child_has_gone = os.pipe()


def write_when_the_child_has_gone(path, image):
    os.read(child_has_gone[0], 1)
    return write(path, image)


def left():
    print("left by the rank" if os.getpid() == rank else "left by its child", flush=True)


writing.write_image = write_when_the_child_has_gone
# not a group of Gloo itself: with one, torch alone keeps a child from ending
dist.is_initialized, dist.destroy_process_group = lambda: True, left
leave_at_exit()
checkpoints = Checkpoints(folder, state={"model": torch.nn.Linear(2, 2)}, place=alone())
checkpoints.save()
child = os.fork()
if child == 0:
    if how == "closes":
        checkpoints.close()
    sys.exit(0)
print("child ended with", os.waitpid(child, 0)[1], flush=True)
print("another may save" if Lock(checkpoints._store.folder / ".lock").take() else "locked", flush=True)
os.write(child_has_gone[1], b"!")
"""


@pytest.mark.parametrize("how", ["ends", "closes"])
def test_a_child_that_the_script_forks_leaves_group_lock_and_what_is_written_to_the_rank(
    tmp_path: Path, how: str
) -> None:
    command = [sys.executable, "-c", WITH_A_CHILD, str(tmp_path / "checkpoints"), how]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["child ended with 0", "locked", "left by the rank"]
    assert lying_in(tmp_path / "checkpoints") == {"step-000000000000"}


def test_a_child_that_outlives_its_rank_does_not_keep_the_lock(tmp_path: Path) -> None:
    program = f"""
import os, signal, time
from pathlib import Path
from topout.train.checkpoint.lock import Lock
lock = Lock(Path({str(tmp_path / "lock")!r}))
assert lock.take()
child = os.fork()
if child == 0:
    time.sleep(60)
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None
        child = int(rank.stdout.readline())
    try:
        assert Lock(tmp_path / "lock").take()
    finally:
        os.kill(child, 9)


@pytest.fixture
def hold_step_4(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The checkpoint of step 4 is begun, and goes on when the event is set."""
    go_on, write = threading.Event(), files.write_image

    def held(path: Path, image: memoryview) -> files.Written:
        if "000000000004" in path.parent.name:
            go_on.wait(60)
        return write(path, image)

    monkeypatch.setattr("topout.train.checkpoint.writing.write_image", held)
    yield go_on
    go_on.set()


def wait_until_begun(folder: Path) -> None:
    give_up_s = time.monotonic() + 60
    while not list(folder.glob(".writing-*")):
        assert time.monotonic() < give_up_s
        time.sleep(0.01)


def test_who_restores_or_saves_beside_a_living_training_leaves_what_it_is_writing(
    training: MakeTraining, tmp_path: Path, hold_step_4: threading.Event
) -> None:
    first = training().take(4)
    wait_until_begun(tmp_path / "checkpoints")
    other = training(every=None)
    restored = other.checkpoints.restore()
    assert restored is not None and restored.step == 2
    other.take(1).checkpoints.save()
    other.close()
    assert steps(tmp_path) == [2, 3]
    hold_step_4.set()
    first.close()
    assert steps(tmp_path) == [2, 3, 4]


def test_what_is_saved_after_close_is_waited_for_at_the_end_as_well(
    training: MakeTraining, tmp_path: Path, hold_step_4: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(before_leaving, "_calls", [])
    training().take(2).close().take(2)
    wait_until_begun(tmp_path / "checkpoints")
    threading.Timer(0.2, hold_step_4.set).start()
    before_leaving.finish()
    assert steps(tmp_path) == [2, 4]


def read_by_restore(training: MakeTraining, _tmp_path: Path) -> Path:
    restored = training(every=None).checkpoints.restore()
    assert restored is not None and restored.skipped == ()
    return restored.folder


def read_by_to_safetensors(_training: MakeTraining, tmp_path: Path) -> Path:
    return to_safetensors(tmp_path / "checkpoints", tmp_path / "model.safetensors")


ROOM = "topout.train.checkpoint."


def before(name: str, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch, times: int = 1) -> None:
    """`act`, the first times that a reader calls it."""
    call, left = pkgutil.resolve_name(ROOM + name), list(range(times))

    def called(*args: Any) -> Any:
        if left:
            left.pop()
            act()
        return call(*args)

    monkeypatch.setattr(ROOM + name, called)


def go_on(living: Training) -> None:
    """Its next checkpoint is safe, and the one before deleted."""
    with torch.enable_grad():
        living.take(2).checkpoints._settle()


@pytest.mark.parametrize("read", [read_by_restore, read_by_to_safetensors])
@pytest.mark.parametrize("moment", ["manifest.read", "manifest.verify", "manifest.tree_name", "{}.file_image"])
def test_a_checkpoint_that_a_living_training_deletes_while_it_is_read_is_not_called_damaged(
    training: MakeTraining,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    read: Callable[[MakeTraining, Path], Path],
    moment: str,
) -> None:
    living = training(keep=1).take(2)
    living.checkpoints._settle()
    by = "reader" if read is read_by_restore else "single_file"
    before(moment.format(by), partial(go_on, living), monkeypatch)
    assert read(training, tmp_path).name == "step-000000000004"


def test_a_checkpoint_that_another_replaces_while_it_is_read_is_not_called_damaged(
    training: MakeTraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoints"
    training(every=3).take(3).close()
    (folder / "step-000000000003").rename(tmp_path / "other")
    training().take(2).close()
    before("manifest.verify", lambda: Store(folder).commit(tmp_path / "other", 2), monkeypatch)
    restored = training().checkpoints.restore()
    assert restored is not None
    assert (restored.step, restored.skipped) == (3, ())


def read_the_one_given(_training: MakeTraining, tmp_path: Path) -> Path:
    return to_safetensors(tmp_path / "checkpoints" / "step-000000000000", tmp_path / "model.safetensors")


@pytest.mark.parametrize("read", [read_by_restore, read_by_to_safetensors, read_the_one_given])
@pytest.mark.parametrize("times", [1, 2, 4])
def test_nor_is_one_that_a_training_without_steps_replaces_again_and_again(
    training: MakeTraining,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    read: Callable[[MakeTraining, Path], Path],
    times: int,
) -> None:
    living = training(every=None)

    def replace() -> None:
        next(living.model.parameters()).data.add_(1)
        living.checkpoints.save()
        living.checkpoints._settle()

    replace()
    before("manifest.verify", replace, monkeypatch, times)
    assert read(training, tmp_path).name == "step-000000000000"


@pytest.mark.parametrize("read", [read_by_restore, read_by_to_safetensors])
def test_checkpoints_that_go_sooner_than_they_can_be_read_are_an_error_that_says_so(
    training: MakeTraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[MakeTraining, Path], Path]
) -> None:
    living = training(keep=1).take(2)
    living.checkpoints._settle()
    before("manifest.verify", partial(go_on, living), monkeypatch, times=100)
    with pytest.raises(TopoutError, match=r"step-000000000010 went from .* while it was read, and so did 4 before it"):
        read(training, tmp_path)


def test_who_saves_beside_another_cleans_up_once_that_has_ended(
    training: MakeTraining, tmp_path: Path, hold_step_4: threading.Event
) -> None:
    first = training().take(4)
    wait_until_begun(tmp_path / "checkpoints")
    (tmp_path / "checkpoints" / ".writing-step-000000000009-abcd").mkdir()
    other = training(every=None)
    other.checkpoints.restore()
    other.take(1).checkpoints.save()
    hold_step_4.set()
    first.close()
    assert ".writing-step-000000000009-abcd" in lying_in(tmp_path / "checkpoints")
    other.take(2).checkpoints.save()
    other.close()
    assert lying_in(tmp_path / "checkpoints") == {f"step-{number:012d}" for number in (3, 4, 5)}


def test_what_is_taken_for_a_crash_s_while_it_is_written_is_not_committed(
    training: MakeTraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by another training where nobody can lock; its deleting has not come far when the writer goes on."""
    first = training().take(2)
    first.checkpoints._settle()
    write = manifest.write

    def cleaned_before(folder: Path, content: dict[str, Any]) -> None:
        Store(folder.parent).clean(also_unfinished=True)
        write(folder, content)

    with monkeypatch.context() as patch:
        patch.setattr("topout.train.checkpoint.store.shutil.rmtree", lambda *_, **__: None)
        patch.setattr(manifest, "write", cleaned_before)
        with pytest.raises(TopoutError, match="of step 4, was not written"):
            first.take(2).close()
    assert steps(tmp_path) == [2]


def test_a_checkpoint_that_has_lost_a_file_meanwhile_is_not_committed(
    training: MakeTraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = training(keep=1).take(2)
    first.checkpoints._settle()
    monkeypatch.setattr(
        "topout.train.checkpoint.writing.flush_folder", lambda folder: (folder / "rank-00000.data").unlink()
    )
    with pytest.raises(TopoutError, match="of step 4, was not written") as raised:
        first.take(2).close()
    assert "removed before all ranks had written theirs (rank-00000.data)" in raised.value.why
    assert steps(tmp_path) == [2]


@pytest.mark.parametrize("seen_after_s", [0, 30, 100])
def test_a_folder_that_a_rank_does_not_see_yet_is_waited_for(
    training: MakeTraining, monkeypatch: pytest.MonkeyPatch, seen_after_s: int
) -> None:
    slept: list[float] = []
    clock = types.SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr(checkpoints, "time", clock)
    monkeypatch.setattr(checkpoints, "is_seen", lambda path: path.exists() and sum(slept) >= seen_after_s)
    if seen_after_s <= 30:
        training()
        assert sum(slept) == seen_after_s
    else:
        with pytest.raises(TopoutError, match="Rank 0 does not see the folder"):
            training()
        assert 40 <= sum(slept) < 45


def test_a_name_that_was_not_there_is_asked_for_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NFS has it: below a name that was not there nothing is, until the folder of that name is opened."""
    path, absent, opened = tmp_path / "new" / "checkpoints" / "probe", tmp_path / "new", []
    stat, open_ = Path.stat, os.open

    def remember(asked: Path) -> None:
        if tmp_path not in opened and (asked == absent or absent in asked.parents):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    def stat_as_remembered(asked: Path, **options: Any) -> os.stat_result:
        remember(asked)
        return stat(asked, **options)

    def open_as_remembered(asked: Path, flags: int) -> int:
        remember(asked)
        opened.append(asked)
        return open_(asked, flags)

    path.parent.mkdir(parents=True)
    path.touch()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", stat_as_remembered)
        patch.setattr(os, "open", open_as_remembered)
        assert not absent.exists()
        assert files.is_seen(path)
    assert not files.is_seen(path.with_name("other"))


def test_a_run_that_did_not_restore_does_not_mix_with_another(training: MakeTraining) -> None:
    training().take(2).close()
    with pytest.raises(TopoutError, match="holds checkpoints of another training, up to step 2"):
        training().take(2)


def test_a_run_whose_restore_was_refused_does_not_mix_with_another(training: MakeTraining, tmp_path: Path) -> None:
    training().take(4).close()
    other = training(model=nn.Linear(4, 2), every=1)
    with pytest.raises(TopoutError, match="from another model"):
        other.checkpoints.restore()
    with pytest.raises(TopoutError, match="holds checkpoints of another training, up to step 4"):
        other.take(1)
    assert steps(tmp_path) == [2, 4]


def test_the_checkpoint_just_written_is_not_deleted_as_an_old_one(tmp_path: Path) -> None:
    """Others of greater numbers may lie there: of a training that another process has begun in the same folder."""
    store = Store(tmp_path)
    for step in (1, 2, 10, 20):
        store.path(step).mkdir()
    store.retire(2, keep=1, keep_every=None)
    assert store.steps() == [2, 20]
