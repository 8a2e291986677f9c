"""The slot file: samples in pages of one size, and a table that says on which pages a sample lies.

    header (4096 B) | first page of each sample (u32) | page after each page (u32) | pages

One process writes (it holds the folder's lock), all processes of the node read, without locks. A sample enters the
table after its bytes stand on its pages and leaves it before they are used again, so a writer killed at any moment
leaves a table that is true. A reader that is overtaken while copying sees it by the sample's checksum: never use bytes
from here without checking them.
"""

import mmap
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topout.packs.layout import HEADER_BYTES

NO_PAGE = 0xFFFFFFFF
_MAGIC = b"TOPOUTAR"
_VERSION = 1
_HEADER = struct.Struct("<8sI64sIQQ")
_SMALLEST_PAGE_BYTES = 64
_SAMPLED_ROWS = 1 << 16
_COST_OF_A_PAGE_BYTES = 100


def page_size_for(lengths_bytes: NDArray[Any]) -> int:
    """The page that wastes least: as long as the records where they are alike, else an eighth of a record or so."""
    lengths = lengths_bytes[:: max(1, len(lengths_bytes) // _SAMPLED_ROWS)].astype(np.int64)
    longest = max(1, int(lengths.max(initial=1)))
    candidates = {_rounded(longest)} | {1 << power for power in range(8, 17) if 1 << power <= longest}
    # 4 bytes a page in the table, and some time to find and read one more page
    return min(candidates, key=lambda page: (int((-(-lengths // page)).sum()) * (page + _COST_OF_A_PAGE_BYTES), page))


def _rounded(num_bytes: int) -> int:
    return -(-num_bytes // _SMALLEST_PAGE_BYTES) * _SMALLEST_PAGE_BYTES


class ArenaLayout:
    """Where things stand in an arena; the same numbers for whoever writes and reads it."""

    def __init__(self, *, pack_key: str, num_samples: int, page_bytes: int, num_pages: int) -> None:
        self.pack_key = pack_key
        self.num_samples = num_samples
        self.page_bytes = page_bytes
        self.num_pages = num_pages
        self.chain_offset = HEADER_BYTES + 4 * num_samples
        tables_end = self.chain_offset + 4 * num_pages
        self.pages_offset = -(-tables_end // 4096) * 4096
        self.num_bytes = self.pages_offset + num_pages * page_bytes

    @classmethod
    def within(cls, budget_bytes: int, *, pack_key: str, num_samples: int, page_bytes: int) -> "ArenaLayout":
        """As many pages as the budget holds beside the tables; possibly none."""
        spare_bytes = budget_bytes - HEADER_BYTES - 4 * num_samples - 4096
        num_pages = max(0, min(spare_bytes // (page_bytes + 4), NO_PAGE - 1))
        return cls(pack_key=pack_key, num_samples=num_samples, page_bytes=page_bytes, num_pages=num_pages)

    def header(self) -> bytes:
        key = self.pack_key.encode()[:64]
        return _HEADER.pack(_MAGIC, _VERSION, key, self.page_bytes, self.num_pages, self.num_samples)

    @classmethod
    def of_file(cls, path: Path) -> "ArenaLayout | None":
        """None when there is no arena, or none that is whole."""
        try:
            with path.open("rb") as file:
                magic, version, key, page_bytes, num_pages, num_samples = _HEADER.unpack(file.read(_HEADER.size))
                size_bytes = os.fstat(file.fileno()).st_size
        except (OSError, struct.error):
            return None
        if magic != _MAGIC or version != _VERSION:
            return None
        layout = cls(
            pack_key=key.rstrip(b"\0").decode("ascii", "replace"),
            num_samples=num_samples,
            page_bytes=page_bytes,
            num_pages=num_pages,
        )
        return layout if layout.num_bytes == size_bytes else None


class ArenaView:
    """An arena as readers see it."""

    _access = mmap.ACCESS_READ
    _mode = os.O_RDONLY
    _file = -1

    def __init__(self, path: Path, layout: ArenaLayout) -> None:
        self.layout = layout
        self._file = os.open(path, self._mode | os.O_CLOEXEC)
        self._tables = mmap.mmap(self._file, layout.pages_offset, access=self._access)
        # memory views, not numpy: one entry at a time is read, and a view gives it in half the time
        tables = memoryview(self._tables)
        self._first = tables[HEADER_BYTES : layout.chain_offset].cast("I")
        self._chain = tables[layout.chain_offset : layout.chain_offset + 4 * layout.num_pages].cast("I")

    def holds(self, sample: int) -> bool:
        return self._first[sample] != NO_PAGE

    def read(self, sample: int, length_bytes: int) -> bytes | None:
        """What stands on the sample's pages, None when it has none; check it before use."""
        layout = self.layout
        page = self._first[sample]
        if page == NO_PAGE:
            return None
        parts = []
        run_start, run_pages, missing_bytes = page, 0, length_bytes
        while missing_bytes > 0:
            if page >= layout.num_pages:
                return None
            run_pages += 1
            missing_bytes -= layout.page_bytes
            following = self._chain[page]
            if following != page + 1 or missing_bytes <= 0:
                run_bytes = run_pages * layout.page_bytes + min(0, missing_bytes)
                parts.append(os.pread(self._file, run_bytes, layout.pages_offset + run_start * layout.page_bytes))
                run_start, run_pages = following, 0
            page = following
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def pages_of(self, sample: int, num_pages: int) -> list[int]:
        """The chain of a sample; shorter than asked for when it leads nowhere."""
        pages: list[int] = []
        page = self._first[sample]
        while page < self.layout.num_pages and len(pages) < num_pages:
            pages.append(page)
            page = self._chain[page]
        return pages

    def samples(self) -> NDArray[np.int64]:
        return np.flatnonzero(np.frombuffer(self._first, dtype=np.uint32) != NO_PAGE).astype(np.int64)

    def close(self) -> None:
        self._first.release()
        self._chain.release()
        self._tables.close()
        self.__del__()

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Arena(ArenaView):
    """An arena as its one writer sees it; keeps the free pages."""

    _access = mmap.ACCESS_WRITE
    _mode = os.O_RDWR

    def __init__(self, path: Path, layout: ArenaLayout, lengths_bytes: NDArray[Any]) -> None:
        super().__init__(path, layout)
        self._lengths = lengths_bytes
        self._free = self._unclaimed()

    @property
    def free_bytes(self) -> int:
        return len(self._free) * self.layout.page_bytes

    def num_pages(self, sample: int) -> int:
        return -(-int(self._lengths[sample]) // self.layout.page_bytes)

    def reserve(self, sample: int) -> list[int]:
        """Takes the pages a sample needs; there must be enough."""
        count = self.num_pages(sample)
        taken = self._free[-count:]
        del self._free[-count:]
        return sorted(taken)

    def release(self, pages: Iterable[int]) -> None:
        self._free.extend(pages)

    def put(self, sample: int, pages: list[int], record: bytes) -> None:
        layout = self.layout
        start = 0
        for page, following in zip(pages, [*pages[1:], NO_PAGE], strict=True):
            part = record[start : start + layout.page_bytes]
            _write_all(self._file, part, layout.pages_offset + page * layout.page_bytes)
            self._chain[page] = following
            start += layout.page_bytes
        self._first[sample] = pages[0]

    def drop(self, sample: int) -> None:
        pages = self.pages_of(sample, self.num_pages(sample))
        self._first[sample] = NO_PAGE
        self.release(pages)

    def _unclaimed(self) -> list[int]:
        """Free pages after another writer; an entry whose pages are not its own (a crash of the host) is struck out."""
        is_claimed = bytearray(self.layout.num_pages)
        for sample in self.samples().tolist():
            count = self.num_pages(sample)
            pages = self.pages_of(sample, count)
            if len(pages) != count or any(is_claimed[page] for page in pages):
                self._first[sample] = NO_PAGE
                continue
            for page in pages:
                is_claimed[page] = 1
        free = np.flatnonzero(np.frombuffer(is_claimed, dtype=np.uint8) == 0)
        # taken from the end: low pages first, so that neighbours stay together
        return free[::-1].tolist()  # type: ignore[no-any-return]


def create_arena(path: Path, layout: ArenaLayout) -> None:
    """Puts an empty arena in place of whatever is there; allocated whole, so no later write finds the disk full."""
    unfinished = path.with_name(f"{path.name}.tmp")
    try:
        with unfinished.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, layout.num_bytes)
            file.write(layout.header().ljust(HEADER_BYTES, b"\0"))
            for start in range(0, layout.num_samples, 1 << 20):
                file.write(b"\xff" * (4 * min(1 << 20, layout.num_samples - start)))
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def _write_all(file: int, data: bytes, offset: int) -> None:
    written = os.pwrite(file, data, offset)
    while written < len(data):
        written += os.pwrite(file, data[written:], offset + written)
