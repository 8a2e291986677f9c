"""`pack.json`: what a pack holds and in which files. Written last, so a folder without it is not a pack.

It says nothing of when or by whom: packing the same source again gives the same bytes. Not for anything that grows with
the samples; that is the index's.
"""

import base64
import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from topout.packs.damage import DamagedPack, not_a_pack
from topout.packs.fields import Field, stored_fields
from topout.packs.layout import VERSION
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.plain_file import check_plain

MANIFEST_NAME = "pack.json"
INDEX_NAME = "index.bin"
NAMES_NAME = "names.bin"
SKIPPED_NAME = "skipped.txt"
FORMAT = "topout pack"
_DIGEST_KEY = b',\n "digest"'


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """A file of the pack, as its writer left it."""

    file: str
    size_bytes: int
    data_crc: int


@dataclass(frozen=True, kw_only=True)
class ShardEntry(FileEntry):
    """A shard, the samples in it, and the entries of the source it was made from."""

    num_samples: int
    source_start: int
    source_stop: int


@dataclass(frozen=True, kw_only=True)
class SourceEntry:
    """What was packed; `path` as given then, made absolute."""

    plugin: str
    path: str
    fingerprint: str
    num_entries: int
    num_files: int
    num_folders: int
    total_bytes: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of pack.json but its digest."""

    format: str = FORMAT
    version: int = VERSION
    pack_id: str
    num_samples: int
    fields: tuple[Field, ...]
    classes: tuple[str, ...] | None
    index: FileEntry
    names: FileEntry
    shards: tuple[ShardEntry, ...]
    source: SourceEntry | None
    """None: the samples came from an iterable."""
    options: dict[str, int | str | list[int | str] | None] = field(default_factory=dict)
    """What was done to the samples on the way; empty: nothing."""
    num_skipped: int = 0
    skipped: FileEntry | None = None
    """skipped.txt, where entries were left out; `data_crc` is of all its bytes."""
    dictionaries: dict[str, str] = field(default_factory=dict)
    """Field -> trained dictionary of its codec, base64."""

    @property
    def changes(self) -> dict[str, int | str | list[int | str]]:
        """Those of the options by which a sample's bytes may differ from its file's."""
        done = {name: value for name, value in self.options.items() if value is not None}
        done.pop("check_images", None)
        return done

    def dictionary_bytes(self) -> dict[str, bytes]:
        return {name: base64.b64decode(text) for name, text in self.dictionaries.items()}

    def encode(self) -> bytes:
        """ASCII; a byte of a path or a class that is not UTF-8 is the escape of its surrogate: 0xff is `\\udcff`."""
        body = json.dumps(asdict(self), indent=1, ensure_ascii=True).encode().removesuffix(b"\n}")
        return body + _ending(body)


@dataclass(frozen=True)
class _Versioned:
    version: int


def shard_name(number: int) -> str:
    return f"shard-{number:05d}.bin"


def read_manifest(path: Path) -> Manifest:
    """Of the pack at `path`. Raises where there is none, where it is altered, or of a version not known here."""
    check_plain(path / MANIFEST_NAME)
    try:
        data = (path / MANIFEST_NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise not_a_pack(path) from None
    except OSError as error:
        raise TopoutError(
            f"{path / MANIFEST_NAME} cannot be read.",
            why=error.strerror or str(error),
            do="check its permissions",
            exit_code=ExitCode.ENVIRONMENT,
        ) from error
    _check_version(path, data)
    body = data[: max(0, data.rfind(_DIGEST_KEY))]
    if data != body + _ending(body):
        raise _altered(path, "its digest does not match its contents")
    try:
        # not msgspec's own reader: it refuses the lone surrogates of names that are not UTF-8
        manifest = msgspec.convert(json.loads(body + b"\n}"), type=Manifest)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise _altered(path, str(error)) from error
    _check_names(path, manifest)
    _check_fields(path, manifest)
    return manifest


def _check_names(path: Path, manifest: Manifest) -> None:
    """A digest shows that nothing was altered, not who wrote it: a file elsewhere must be neither read nor replaced."""
    own = {manifest.index.file: INDEX_NAME, manifest.names.file: NAMES_NAME}
    own |= {entry.file: shard_name(number) for number, entry in enumerate(manifest.shards)}
    if manifest.skipped is not None:
        own[manifest.skipped.file] = SKIPPED_NAME
    strange = next((file for file, name in own.items() if file != name), None)
    if strange is not None:
        raise _altered(path, f"it names the file {strange!r}, which no pack has")


def _check_fields(path: Path, manifest: Manifest) -> None:
    """As writers check theirs: a batch is filled with the bytes of records, and those may never stand for objects."""
    try:
        stored = stored_fields(manifest.fields)
    except TopoutError as error:
        raise _altered(path, f"{error.problem.rstrip('.')}: {error.why}") from error
    strange = next((field for field, own in zip(manifest.fields, stored, strict=True) if field != own), None)
    if strange is not None:
        raise _altered(path, f"field {strange.name!r} has the item type {strange.dtype!r}, which no pack has")


def _check_version(path: Path, data: bytes) -> None:
    """A later version may have other keys and another digest, so it is asked before anything else."""
    try:
        version = msgspec.convert(json.loads(data), type=_Versioned).version
    except (msgspec.ValidationError, ValueError, RecursionError):
        return
    if version != VERSION:
        raise TopoutError(
            f"{path} is a pack of version {version}.",
            why=f"this topout reads version {VERSION}",
            do="install the topout that wrote it, or pack the data again",
            exit_code=ExitCode.ENVIRONMENT,
        )


def _ending(body: bytes) -> bytes:
    return _DIGEST_KEY + f': "{hashlib.sha256(body).hexdigest()}"\n}}\n'.encode()


def _altered(path: Path, why: str) -> DamagedPack:
    return DamagedPack(
        path, f"{path / MANIFEST_NAME} is damaged.", why, f"pack the source again: topout pack SRC {path} --force"
    )
