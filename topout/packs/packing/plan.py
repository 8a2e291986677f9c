"""Which entries go into which shard, decided from metadata alone: the same source and options give the same plan.

The plan's digest is the pack's id. Times of change are not in it (a copy of a dataset packs to the same bytes), but a
pack that was begun goes on only while they are the same.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from topout.packs.fields import Field, with_codecs
from topout.packs.layout import VERSION
from topout.packs.names import encode_name, encode_names
from topout.packs.packing.begun import BegunPack, write_durably
from topout.packs.packing.dictionaries import train_dictionaries
from topout.packs.packing.options import PackOptions
from topout.packs.packing.preprocess import Preprocessor
from topout.packs.sources import Listing
from topout.schema.errors import TopoutError

_ENTRY_BYTES = 64
"""Added to each entry when shards are cut, so that a million empty files do not end up in one."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is packed and how."""

    identity: bytes
    """SHA-256 of all that decides the pack's bytes, but for what the entries hold."""
    fingerprint: str
    fields: tuple[Field, ...]
    ranges: list[tuple[int, int]]
    dictionaries: dict[str, bytes]

    @property
    def pack_id(self) -> bytes:
        return self.identity[:16]


@dataclass(frozen=True, kw_only=True)
class _Saved:
    identity: str
    fingerprint: str
    dictionaries: dict[str, str]


def planned_fields(listing: Listing, options: PackOptions) -> tuple[Field, ...]:
    return with_codecs(Preprocessor(listing.fields, options).fields, options.codecs)


def identity_of(listing: Listing, fields: Sequence[Field], options: PackOptions) -> bytes:
    settings = {
        "version": VERSION,
        "fields": [asdict(field) for field in fields],
        "classes": listing.classes,
        "changes": Preprocessor(listing.fields, options).changes,
        "shard_bytes": options.shard_bytes,
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    digest.update(encode_names([encode_name(name) for name in listing.names]))
    digest.update(np.ascontiguousarray(listing.sizes, dtype="<i8").tobytes())
    return digest.digest()


def make_plan(begun: BegunPack, listing: Listing, fields: tuple[Field, ...], options: PackOptions) -> Plan:
    """The plan that was begun here, or a new one; raises where another one was begun."""
    identity, fingerprint = identity_of(listing, fields, options), listing.fingerprint
    saved = _read(begun.plan_path)
    if saved is not None and (saved.identity, saved.fingerprint) != (identity.hex(), fingerprint):
        if not options.is_replacing:
            raise _another(begun, saved.identity == identity.hex())
        saved = None
    if saved is None:
        begun.clear()
        dictionaries = train_dictionaries(listing, fields, Preprocessor(listing.fields, options))
        saved = _Saved(
            identity=identity.hex(),
            fingerprint=fingerprint,
            dictionaries={name: base64.b64encode(data).decode() for name, data in dictionaries.items()},
        )
        write_durably(begun.plan_path, [msgspec.json.encode(asdict(saved))])
    return Plan(
        identity=identity,
        fingerprint=fingerprint,
        fields=fields,
        ranges=cut(listing.sizes, options.shard_bytes),
        dictionaries={name: base64.b64decode(text) for name, text in saved.dictionaries.items()},
    )


def cut(sizes: NDArray[np.int64], shard_bytes: int) -> list[tuple[int, int]]:
    """Contiguous ranges of entries, each about `shard_bytes` of the source long."""
    if not len(sizes):
        return []
    begins = np.cumsum(sizes + _ENTRY_BYTES) - (sizes + _ENTRY_BYTES)
    starts = np.flatnonzero(np.diff(begins // shard_bytes, prepend=-1))
    return list(zip(starts.tolist(), [*starts[1:].tolist(), len(sizes)], strict=True))


def _read(path: Path) -> _Saved | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Saved)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _another(begun: BegunPack, has_same_plan: bool) -> TopoutError:
    other = "it was of another source, with other options, or by a topout that planned otherwise"
    why = "files of the source were changed since" if has_same_plan else other
    return TopoutError(
        f"Packing {begun.destination} was begun and cannot be gone on with.",
        why=why,
        do="begin anew with --force, or give the source and options of then",
    )
