"""The folder near the ranks in which one pack is staged, and the files by which the processes of a node agree.

    pack.json index.bin names.bin    as in the pack
    shard-00000.bin …                shards staged whole; with all of them the folder is a pack like any other
    arena.bin                        samples staged one by one
    lock                             flock: held by the process that stages
    in-use                           flock: shared by all that have the pack open
    state.bin                        what it has done; readers map it
    readers/                         one file for each reader, flock held while it lives, with its time and its counts

Who is alive is asked by flock alone, which the kernel gives up with the process: nothing left behind by a killed job
can stop the next one. Not on a network file system: flock and shared maps must be those of one host.
"""

import fcntl
import mmap
import os
import shutil
import stat
import time
import weakref
from contextlib import ExitStack, suppress
from enum import IntEnum
from pathlib import Path

from topout.schema.errors import ExitCode, TopoutError

ROOT_VARIABLE = "TOPOUT_STAGE"
_PAGE_BYTES = 4096
_DELETING = ".deleting-"
_held: "weakref.WeakSet[HeldLock]" = weakref.WeakSet()


class Word(IntEnum):
    """Places of the numbers in state.bin."""

    GENERATION = 0
    HOLDER_PID = 1
    BUDGET_BYTES = 2
    STAGED_BYTES = 3
    NUM_STAGED = 4
    NUM_RETRIES = 5
    NUM_GIVEN_UP = 6
    NUM_EVICTED = 7


class HeldLock:
    """An flock held until closed, or until this process ends however it may."""

    def __init__(self, file: int) -> None:
        self._file = file
        _held.add(self)

    def release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def is_of(self, path: Path) -> bool:
        """Not, where the file was removed meanwhile."""
        try:
            return os.path.samestat(os.fstat(self._file), path.stat())
        except FileNotFoundError:
            return False


def try_lock(path: Path) -> HeldLock | None:
    """None when another process, or another part of this one, holds it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return HeldLock(file)


def wait_for_lock(path: Path) -> HeldLock:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX)
    return HeldLock(file)


def share_lock(path: Path) -> HeldLock:
    """Held by any number; `try_lock` fails meanwhile."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(file, fcntl.LOCK_SH)
    return HeldLock(file)


def _forget_locks() -> None:
    # a loader's worker must not keep the lock of a rank that was killed
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_forget_locks)


def default_root() -> Path:
    """Where to stage when nobody says: what the site names as node-local, else memory."""
    for variable in (ROOT_VARIABLE, "SLURM_TMPDIR", "TMPDIR"):
        if os.environ.get(variable):
            return Path(os.environ[variable]) / f"topout-stage-{os.getuid()}"
    memory = Path("/dev/shm")
    return (memory if memory.is_dir() else Path("/tmp")) / f"topout-stage-{os.getuid()}"


class StagingFolder:
    """The paths of one pack's staging folder; made when first needed."""

    def __init__(self, root: Path, key: str) -> None:
        self.root = root
        self.path = root / key
        self.readers = self.path / "readers"
        self.arena = self.path / "arena.bin"
        self.lock = self.path / "lock"
        self.state = self.path / "state.bin"
        self._in_use = self.path / "in-use"

    def make(self) -> None:
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.readers.mkdir(mode=0o700, parents=True, exist_ok=True)
            owner = self.root.stat()
        except OSError as error:
            raise TopoutError(
                f"Nothing can be staged in {self.root}.",
                why=error.strerror or str(error),
                do=f"name a folder on a disk of the node, or in memory: {ROOT_VARIABLE}=/dev/shm/me",
                exit_code=ExitCode.ENVIRONMENT,
            ) from error
        # in /dev/shm anybody may have made it first; what others can write is not to be trained on
        if owner.st_uid != os.getuid() or owner.st_mode & stat.S_IWOTH:
            raise TopoutError(
                f"{self.root} is not safe to stage in.",
                why="it belongs to another user, or all may write to it",
                do=f"name a folder of your own: {ROOT_VARIABLE}=/dev/shm/me",
                exit_code=ExitCode.ENVIRONMENT,
            )

    def hold(self) -> HeldLock:
        """Makes it; until released, nobody takes it for abandoned."""
        while True:
            self.make()
            with suppress(FileNotFoundError):
                lock = share_lock(self._in_use)
                if lock.is_of(self._in_use):
                    return lock
                lock.release()

    def remove_unfinished(self) -> None:
        """Copies that a killed process did not finish; only for the holder of the lock."""
        for path in self.path.glob("*.tmp"):
            path.unlink(missing_ok=True)

    def free_bytes(self) -> int:
        """What the file system has left for this user."""
        free = os.statvfs(self.path)
        return free.f_bavail * free.f_frsize

    def remove_abandoned(self, needed_bytes: int) -> None:
        """Deletes what was staged of other packs by processes that are gone, oldest first, until there is room."""
        others = [path for path in self.root.iterdir() if path.is_dir() and path != self.path]
        for other in sorted(others, key=_time_ns):
            if self.free_bytes() >= needed_bytes:
                return
            if other.name.startswith(_DELETING):
                shutil.rmtree(other, ignore_errors=True)
                continue
            with suppress(OSError), ExitStack() as locks:
                if any(is_held(reader) for reader in (other / "readers").iterdir()):
                    continue
                # one that has it open need not read yet
                for name in ("in-use", "lock"):
                    lock = try_lock(other / name)
                    if lock is None:
                        break
                    locks.callback(lock.release)
                    if not lock.is_of(other / name):
                        break
                else:
                    # by another name first: whoever opens the pack meanwhile makes a folder of its own
                    aside = other.rename(other.with_name(f"{_DELETING}{time.time_ns()}"))
                    shutil.rmtree(aside, ignore_errors=True)


def _time_ns(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:  # another process has deleted it
        return 0


def is_held(path: Path) -> bool:
    """Whether a living process holds this lock."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


class State:
    """state.bin: numbers of the holder, then for each shard the number of its staged copy (0: there is none)."""

    def __init__(self, path: Path, num_shards: int) -> None:
        self._map = mapped(path, _PAGE_BYTES + 4 * num_shards)
        view = memoryview(self._map)
        self._words = view[:_PAGE_BYTES].cast("Q")
        self.copies = view[_PAGE_BYTES : _PAGE_BYTES + 4 * num_shards].cast("I")

    def __getitem__(self, word: Word) -> int:
        return self._words[word]

    def __setitem__(self, word: Word, value: int) -> None:
        self._words[word] = value

    def close(self) -> None:
        self._words.release()
        self.copies.release()
        self._map.close()


def mapped(path: Path, num_bytes: int) -> mmap.mmap:
    """A small file shared by the processes of the node, made when it is not there."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # written, not only made longer: a map of a hole kills its reader when the disk is full
        if os.fstat(file).st_size < num_bytes:
            os.posix_fallocate(file, 0, num_bytes)
        return mmap.mmap(file, num_bytes)
    finally:
        os.close(file)
