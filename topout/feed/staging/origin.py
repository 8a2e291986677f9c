"""Where a pack comes from: a folder on a slow file system, or an address that fsspec understands.

Reads give exactly the bytes asked for or raise; a broken connection is tried again. Checksums are the business of those
who know what they asked for.
"""

import importlib
import os
import re
import threading
import time
from pathlib import Path
from typing import Any, Protocol

from topout.schema.errors import ExitCode, TopoutError

_ATTEMPTS = 4
_FIRST_PAUSE_S = 0.1
_PAUSE_GROWS = 4
_PACKAGES = {
    "s3": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "http": "aiohttp",
    "https": "aiohttp",
}


class Origin(Protocol):
    """The slow path."""

    @property
    def address(self) -> str: ...

    def read(self, name: str, start: int, num_bytes: int) -> bytes:
        """These bytes of this file of the pack; raises OriginError."""

    def read_whole(self, name: str) -> bytes: ...


class OriginError(TopoutError):
    """The slow path does not give what it should have."""

    def __init__(self, address: str, why: str, do: str | None = None) -> None:
        super().__init__(
            f"{address} cannot be read.",
            why=why,
            do=do or "check the address and that this machine can reach it, then start again; staged data is kept",
            exit_code=ExitCode.ENVIRONMENT,
        )


def is_remote(path: str | os.PathLike[str]) -> bool:
    return isinstance(path, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", path) is not None


def origin_of(path: str | os.PathLike[str]) -> Origin:
    return RemoteOrigin(str(path)) if is_remote(path) else FolderOrigin(Path(path))


class FolderOrigin:
    """A folder of a mounted file system."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, int] = {}
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        return str(self.folder)

    def read(self, name: str, start: int, num_bytes: int) -> bytes:
        try:
            data = os.pread(self._file(name), num_bytes, start)
            while 0 < len(data) < num_bytes:
                more = os.pread(self._file(name), num_bytes - len(data), start + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise OriginError(f"{self.folder / name}", error.strerror or str(error)) from error
        if len(data) != num_bytes:
            raise OriginError(f"{self.folder / name}", f"it ends before byte {start + num_bytes}")
        return data

    def read_whole(self, name: str) -> bytes:
        try:
            return (self.folder / name).read_bytes()
        except OSError as error:
            raise OriginError(f"{self.folder / name}", error.strerror or str(error)) from error

    def _file(self, name: str) -> int:
        with self._lock:
            if name not in self._files:
                self._files[name] = os.open(self.folder / name, os.O_RDONLY | os.O_CLOEXEC)
            return self._files[name]

    def __del__(self) -> None:
        for file in self._files.values():
            os.close(file)


class RemoteOrigin:
    """An address: `https://`, `s3://`, `memory://` and whatever else fsspec has a file system for."""

    def __init__(self, address: str, *, attempts: int = _ATTEMPTS) -> None:
        self._address = address.rstrip("/")
        self._attempts = attempts
        self._opened_in = -1
        self._system: Any = None

    @property
    def address(self) -> str:
        return self._address

    def read(self, name: str, start: int, num_bytes: int) -> bytes:
        data = self._tried(name, start=start, end=start + num_bytes) if num_bytes else b""
        if len(data) > num_bytes:
            raise OriginError(
                f"{self._address}/{name}",
                "asked for a part, the server sends the whole file (no range requests)",
                "serve the pack with nginx, Caddy or an object store, which know ranges (python -m http.server does "
                "not), or copy the pack to a disk and open it there",
            )
        if len(data) != num_bytes:
            raise OriginError(f"{self._address}/{name}", f"it ends before byte {start + num_bytes}")
        return data

    def read_whole(self, name: str) -> bytes:
        return self._tried(name)

    def _tried(self, name: str, **part: int) -> bytes:
        path = f"{self._address}/{name}"
        expected_bytes = part["end"] - part["start"] if part else 0
        pause_s = _FIRST_PAUSE_S
        for attempt in range(1, self._attempts + 1):
            try:
                data = bytes(self._file_system().cat_file(path, **part))
                # a connection that was cut may look like the end of the file
                if len(data) >= expected_bytes or attempt == self._attempts:
                    return data
            except FileNotFoundError as error:
                raise OriginError(path, "there is no such file") from error
            except TopoutError:
                raise
            except Exception as error:  # each of fsspec's file systems has exceptions of its own
                if attempt == self._attempts:
                    raise OriginError(path, f"{type(error).__name__}: {error}") from error
            time.sleep(pause_s)
            pause_s *= _PAUSE_GROWS
        raise AssertionError("unreachable")

    def _file_system(self) -> Any:
        # fsspec's event loop does not survive a fork: each process opens its own
        if self._opened_in != os.getpid():
            self._system = _open_file_system(self._address)
            self._opened_in = os.getpid()
        return self._system


def _open_file_system(address: str) -> Any:
    protocol = address.partition("://")[0]
    try:
        system, _ = importlib.import_module("fsspec.core").url_to_fs(address)
    except ImportError as error:
        package = _PACKAGES.get(protocol, "fsspec")
        raise TopoutError(
            f"{address} needs a package that is not installed.",
            why=str(error),
            do=f"pip install fsspec {package}".replace(" fsspec fsspec", " fsspec"),
            exit_code=ExitCode.ENVIRONMENT,
        ) from error
    except ValueError as error:
        raise TopoutError(
            f"{address} is no address that can be read.", why=str(error), do="give a folder, https://… or s3://…"
        ) from error
    return system
