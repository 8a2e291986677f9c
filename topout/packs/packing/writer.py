"""Packs written from Python: `with PackWriter(dst, fields=[...]) as writer: writer.add(name, sample)`.

For iterables, which cannot be asked where they were: a writer that is killed leaves nothing, and begins again. For data
that lies in files use `topout pack`, which goes on where it was and reads with several threads.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

from topout.packs.fields import Field, Sample, checked_fields
from topout.packs.image_header import image_flags
from topout.packs.layout import VERSION
from topout.packs.manifest import MANIFEST_NAME, Manifest, SourceEntry, read_manifest
from topout.packs.packing.begun import BegunPack, begun_already
from topout.packs.packing.finish import Contents, finish
from topout.packs.packing.shard_writer import ShardRows, ShardWriter, write_rows
from topout.packs.packing.storage_errors import cannot_write
from topout.packs.record import RecordLayout
from topout.schema.errors import TopoutError

SHARD_BYTES = 256 << 20


class PackWriter:
    """Samples in the order they are added. The pack appears when the block is left without an error, else never."""

    def __init__(
        self,
        destination: str | Path,
        *,
        fields: Sequence[Field],
        classes: Sequence[str] | None = None,
        shard_bytes: int = SHARD_BYTES,
        dictionaries: Mapping[str, bytes] | None = None,
        source: SourceEntry | None = None,
        is_replacing: bool = False,
    ) -> None:
        self.destination = Path(destination)
        self.fields = checked_fields(fields)
        self.manifest: Manifest | None = None
        """Of the finished pack."""
        if (self.destination / MANIFEST_NAME).exists() and not is_replacing:
            raise taken(self.destination, "is_replacing=True")
        self._classes = None if classes is None else tuple(classes)
        self._shard_bytes = shard_bytes
        self._dictionaries = dict(dictionaries or {})
        self._source = source
        self._images = [field.name for field in self.fields if field.is_image]
        self._layout = RecordLayout(self.fields, self._dictionaries)
        try:
            self._begun = self._begin(is_replacing=is_replacing)
        except OSError as error:
            raise cannot_write(self.destination, error, "writing") from error
        plan = [VERSION, [asdict(field) for field in self.fields], self._classes, shard_bytes]
        # classes may hold surrogates, as names of folders do that are not UTF-8
        text = json.dumps(plan, ensure_ascii=False, separators=(",", ":"))
        self._pack_id = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]
        self._numbers: dict[str, int] = {}
        self._done: list[ShardRows] = []
        self._ranges: list[tuple[int, int]] = []
        self._shard: ShardWriter | None = None
        self._failure: OSError | None = None
        """Of a write: what the shard holds since then nobody knows."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def add(self, name: str, sample: Sample) -> None:
        """Raises TopoutError, and adds nothing, for a sample that does not fit the fields or a name given before."""
        number = len(self._numbers)
        self._raise_if_failed()
        if not isinstance(name, str):
            raise TopoutError(
                f"Sample {number} has no name.",
                why=f"{name!r} is a {type(name).__name__}, and names are text",
                do="give it a str, such as str(number)",
            )
        if name in self._numbers:
            raise TopoutError(
                f"Two samples are called {name!r}.",
                why=f"it was added as sample {self._numbers[name]} and comes again as sample {number}",
                do="give each sample a name of its own",
            )
        try:
            record = self._layout.encode(sample)
            scalars = self._layout.scalar_values(sample)
            flags = sample_flags(self._images, sample)
            shard = self._open_shard()
            shard.append(name, record, scalars, flags)
        except OSError as error:
            self._failure = error
            raise cannot_write(self.destination, error, "writing") from error
        except ValueError as error:
            raise TopoutError(
                f"Sample {number} ({name!r}) does not fit the pack.",
                why=str(error),
                do="change the sample or the fields",
            ) from error
        self._numbers[name] = number
        if shard.data_bytes >= self._shard_bytes:
            try:
                self._close_shard()
            except OSError as error:
                self._failure = error
                raise cannot_write(self.destination, error, "writing") from error

    def close(self) -> Manifest:
        """Finishes the pack and puts it in place."""
        if self.manifest is not None:
            return self.manifest
        if self._failure is not None:
            self.abandon()
        self._raise_if_failed()
        if not self._numbers:
            self.abandon()
            raise TopoutError(
                f"There is nothing to pack to {self.destination}.", why="no sample was added", do="add one at least"
            )
        try:
            self._close_shard()
            contents = Contents(
                pack_id=self._pack_id,
                fields=self.fields,
                classes=self._classes,
                source=self._source,
                options={},
                dictionaries=self._dictionaries,
            )
            self.manifest = finish(self._begun, contents, self._done, self._ranges)
        except OSError as error:
            self.abandon()
            raise cannot_write(self.destination, error, "writing") from error
        except BaseException:
            self.abandon()
            raise
        return self.manifest

    def abandon(self) -> None:
        """Leaves nothing behind, but a pack that is whole and only not in its place: the next writer puts it there."""
        if self._shard is not None:
            self._shard.abandon()
        if self._begun.manifest_path.exists():
            self._begun.close()
        else:
            self._begun.remove()

    def _begin(self, *, is_replacing: bool) -> BegunPack:
        begun = BegunPack(self.destination)
        if begun.manifest_path.exists():
            # ended while it was put in place, when what it replaces was gone
            begun.publish(read_manifest(begun.folder))
            if not is_replacing:
                raise taken(self.destination, "is_replacing=True")
            begun = BegunPack(self.destination)
        if begun.can_go_on and not is_replacing:
            begun.close()
            raise begun_already(begun, "give is_replacing=True to begin anew")
        begun.clear()
        return begun

    def _raise_if_failed(self) -> None:
        if self._failure is not None:
            raise cannot_write(self.destination, self._failure, "writing") from self._failure

    def _open_shard(self) -> ShardWriter:
        if self._shard is None:
            number = len(self._done)
            self._shard = ShardWriter(self._begun.data_path(number), self.fields, self._pack_id, number)
        return self._shard

    def _close_shard(self) -> None:
        if self._shard is not None:
            done = self._shard.close()
            self._shard = None
            write_rows(self._begun.rows_path(len(self._done)), done)
            start = self._ranges[-1][1] if self._ranges else 0
            self._ranges.append((start, start + len(done.rows)))
            self._done.append(done)


def sample_flags(images: Sequence[str], sample: Sample) -> int:
    """Of the fields that are images, together. Raises ValueError for an image that is none."""
    flags = 0
    for name in images:
        flags |= image_flags(bytes(sample[name]))
    return flags


def taken(destination: Path, way_to_replace: str) -> TopoutError:
    return TopoutError(
        f"{destination} holds a pack already.",
        why="packs are never altered",
        do=f"choose another folder, or give {way_to_replace}",
    )
