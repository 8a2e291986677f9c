"""One shard's entries, read, prepared and written: what packing does many times, and repair once more.

The same entries give the same bytes, so a shard that was damaged later can be made again and compared.
"""

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from topout.packs.fields import Field, Sample
from topout.packs.packing.finish import duplicate_name
from topout.packs.packing.options import PackOptions
from topout.packs.packing.preprocess import Preprocessor
from topout.packs.packing.shard_writer import ShardRows, ShardWriter
from topout.packs.packing.writer import sample_flags
from topout.packs.record import RecordLayout
from topout.packs.sources import BadEntry, Listing
from topout.packs.targets import NoProgress, Progress
from topout.schema.errors import ExitCode, TopoutError

Record = tuple[str, list[bytes], list[int | float], int]
"""Name, parts of the record, scalars, flags: what `ShardWriter.append` takes."""


class StoppedError(Exception):
    """Another thread met an error first."""


class ShardMaker:
    """Several threads may make shards with one of these."""

    def __init__(
        self,
        listing: Listing,
        options: PackOptions,
        *,
        fields: tuple[Field, ...],
        dictionaries: Mapping[str, bytes],
        pack_id: bytes,
        progress: Progress | None = None,
    ) -> None:
        self._listing = listing
        self._options = options
        self._fields = fields
        self._pack_id = pack_id
        self._progress = progress or NoProgress()
        self._preprocessor = Preprocessor(listing.fields, options)
        self._images = [field.name for field in fields if field.is_image]
        self._layout = RecordLayout(fields, dictionaries)
        self._duplicates = self._find_duplicates()
        self._is_stopped = threading.Event()

    @property
    def num_entries(self) -> int:
        return len(self._listing.names)

    def stop(self) -> None:
        """Makes every thread that is writing leave, with a StoppedError."""
        self._is_stopped.set()

    def write(self, path: Path, number: int, span: tuple[int, int]) -> ShardRows:
        """The records of the entries `span`; raises for the first bad one unless those are to be skipped."""
        if self._is_stopped.is_set():
            raise StoppedError
        writer = ShardWriter(path, self._fields, self._pack_id, number)
        try:
            for entry, found in zip(range(*span), self._entries(span), strict=True):
                if self._is_stopped.is_set():
                    raise StoppedError
                self._take(writer, entry, found)
                self._progress.add(1, int(self._listing.sizes[entry]))
            return writer.close()
        except BaseException:
            self._is_stopped.set()
            writer.abandon()
            raise

    def records(self, entry: int) -> list[Record]:
        """What one entry becomes; raises ValueError where it cannot be taken."""
        [found] = self._listing.read_range(entry, entry + 1)
        return self._records(entry, found)

    def all_records(self, span: tuple[int, int]) -> Iterator[tuple[int, list[Record] | str]]:
        """What each of the entries `span` becomes, or why it cannot be taken."""
        for entry, found in zip(range(*span), self._entries(span), strict=True):
            try:
                yield entry, self._records(entry, found)
            except ValueError as error:
                yield entry, str(error)

    def _records(self, entry: int, found: Sample | BadEntry) -> list[Record]:
        if entry in self._duplicates:
            raise ValueError("an earlier entry has the same name")
        if isinstance(found, BadEntry):
            raise ValueError(found.reason)
        layout = self._layout
        return [
            (name, layout.encode(sample), layout.scalar_values(sample), sample_flags(self._images, sample))
            for name, sample in self._preprocessor.apply(self._listing.names[entry], found)
        ]

    def _take(self, writer: ShardWriter, entry: int, found: Sample | BadEntry) -> None:
        try:
            for record in self._records(entry, found):
                writer.append(*record)
        except ValueError as error:
            bad = BadEntry(number=entry, name=self._listing.names[entry], reason=str(error))
            if self._options.on_error == "stop":
                raise bad_entry(bad, self._listing) from error
            writer.bad.append(bad)

    def _entries(self, span: tuple[int, int]) -> Iterator[Sample | BadEntry]:
        try:
            yield from self._listing.read_range(*span)
        except OSError as error:
            raise TopoutError(
                f"The source cannot be read ({error.filename or 'around entry ' + str(span[0])}).",
                why=error.strerror or str(error),
                do="look at the source, then give the same command again; what is packed stays packed",
                exit_code=ExitCode.ENVIRONMENT,
            ) from error

    def _find_duplicates(self) -> frozenset[int]:
        names = self._listing.names
        if len(set(names)) == len(names):
            return frozenset()
        first: dict[str, int] = {}
        found = [number for number, name in enumerate(names) if first.setdefault(name, number) != number]
        if self._options.on_error == "stop":
            raise duplicate_name(names[found[0]], first[names[found[0]]], found[0])
        return frozenset(found)


def bad_entry(entry: BadEntry, listing: Listing) -> TopoutError:
    """A listing that knows how its entries are mended says so."""
    skip = "mend or remove it, or give --on-error skip to leave such entries out and have them listed in skipped.txt"
    return TopoutError(
        f"Entry {entry.number} ({entry.name!r}) cannot be packed.",
        why=entry.reason,
        do=getattr(listing, "mended_by", skip),
    )
