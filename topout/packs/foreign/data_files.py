"""The files a source consists of: found, put in order, and told apart from changed ones.

Order is that of the bytes of the relative path, so that two machines with different locales make the same pack.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from topout.schema.errors import ExitCode, TopoutError
from topout.schema.plain_file import check_plain

_DEEPEST = 4
_NUM_SEEN = 256


@dataclass(frozen=True, kw_only=True)
class DataFile:
    path: Path
    name: str
    """Relative to the source; of a single file its own name."""
    size_bytes: int
    modified_ns: int

    @property
    def stem(self) -> str:
        """The relative path without its extension."""
        return self.name.rpartition(".")[0] if "." in self.name.rpartition("/")[2] else self.name


def find_files(source: Path, is_wanted: Callable[[str], bool]) -> tuple[DataFile, ...]:
    """SRC itself, or every wanted file under it; hidden ones and those in hidden folders are nobody's data."""
    if not source.is_dir():
        return (_look(source, source.name),)
    found = []
    for folder, folders, files in os.walk(source, followlinks=True):
        seen = (name for name in folders if not name.startswith("."))
        folders[:] = sorted(name for name in seen if not _leads_back(Path(folder, name)))
        found += [Path(folder, name) for name in files if not name.startswith(".") and is_wanted(name)]
    looked = [_look(path, path.relative_to(source).as_posix()) for path in found]
    return tuple(sorted(looked, key=lambda file: os.fsencode(file.name)))


def _leads_back(folder: Path) -> bool:
    """A link to where it lies itself goes round without end."""
    if not folder.is_symlink():
        return False
    target = folder.resolve()
    return any(parent.resolve() == target for parent in folder.absolute().parents)


def is_mostly(source: Path, is_wanted: Callable[[str], bool]) -> bool:
    """Whether SRC is such a file, or a folder that begins with such files. Cheap also in a folder of millions."""
    folder = source
    for _ in range(_DEEPEST):
        if not folder.is_dir():
            return folder.is_file() and is_wanted(folder.name)
        try:
            with os.scandir(folder) as entries:
                seen = [(entry.name, entry.is_dir()) for entry in islice(entries, _NUM_SEEN)]
        except OSError:
            return False
        files = [name for name, is_folder in seen if not is_folder and not name.startswith(".")]
        folders = [name for name, is_folder in seen if is_folder and not name.startswith(".")]
        if files or not folders:
            return 2 * sum(map(is_wanted, files)) > len(files)
        folder = folder / min(folders)
    return False


def fingerprint(files: Iterable[DataFile]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{len(os.fsencode(file.name))}:".encode() + os.fsencode(file.name))
        digest.update(f"{file.size_bytes}:{file.modified_ns};".encode())
    return digest.hexdigest()


def prefixes(files: Sequence[DataFile]) -> list[str]:
    """What the rows of each file are named after: its stem, or the whole name where two stems are alike."""
    stems = [file.stem for file in files]
    return stems if len(set(stems)) == len(stems) else [file.name for file in files]


def num_folders(files: Iterable[DataFile]) -> int:
    return len({file.path.parent for file in files})


@contextmanager
def explained(source: Path) -> Iterator[None]:
    """Whatever the file system refuses while a source is listed, as an error that says so."""
    try:
        yield
    except OSError as error:
        raise TopoutError(
            f"{error.filename or source} cannot be read.",
            why=error.strerror or str(error),
            do="check the path, its permissions and the disk",
            exit_code=ExitCode.ENVIRONMENT,
        ) from error


def _look(path: Path, name: str) -> DataFile:
    check_plain(path)
    with explained(path):
        status = path.stat()
    return DataFile(path=path, name=name, size_bytes=status.st_size, modified_ns=status.st_mtime_ns)


def none_found(source: Path, what: str, pattern: str) -> TopoutError:
    return TopoutError(
        f"{source} holds no {what}.",
        why=f"no file {pattern} was found in it",
        do="check the path, or name another --from",
    )
