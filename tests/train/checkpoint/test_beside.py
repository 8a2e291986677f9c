"""One folder that others use too: those that only read, those that save beside it, and what crashes have left."""

import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tests.train.checkpoint.conftest import MakeTraining
from topout.schema.errors import TopoutError
from topout.train.checkpoint import files, manifest
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
