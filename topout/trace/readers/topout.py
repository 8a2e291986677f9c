"""topout's own recordings: `rank-*.events` and `rank-*.counters` of a run folder.

A file is read up to its last whole block; whatever follows (a rank killed in mid-write) is left alone. Nothing in a
file is ever executed. Not for following a run that goes on: read it again later.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from topout.schema.block import HEADER, MAGIC, VERSION, BlockType, is_whole
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.event import COLUMNS, Kind, flags_of, kind_of, name_of
from topout.schema.plain_file import check_plain
from topout.schema.run_folder import TO_READ_NEWER, RunFolder
from topout.trace.table import Counter, Int64s, RankTable
from topout.trace.told_steps import settle_steps

_ROW_BYTES = 8 * len(COLUMNS)
_MAX_NAMES = 1_000_000
"""More names than any script has; a damaged NAMES block must not make us reserve memory."""


@dataclass
class _Content:
    """What the whole blocks of one file hold."""

    columns: list[Int64s] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    is_cut: bool = False

    def table(self) -> Int64s:
        """[columns, rows]"""
        if not self.columns:
            return np.empty((len(COLUMNS), 0), dtype=np.int64)
        return np.concatenate(self.columns, axis=1)


def read_run(folder: RunFolder) -> list[RankTable]:
    """One table a recorded rank, in order of rank; empty when nothing was recorded."""
    return settle_steps([read_rank(folder, rank) for rank in folder.ranks_recorded()])


def read_rank(folder: RunFolder, rank: int) -> RankTable:
    """The rank's own rows, all of them, and the counters that the launcher sampled of it."""
    content = _read_blocks(folder.events(rank))
    table = content.table()
    counters = _counters(content.names, table)
    if folder.counters(rank).exists():
        sampled = _read_blocks(folder.counters(rank))
        counters |= _counters(sampled.names, sampled.table())
    rows = np.flatnonzero(_unpacked(kind_of, table[0]) != Kind.COUNTER)
    code, start_ns, duration_ns, value, ref = table[:, rows[np.argsort(table[1, rows], kind="stable")]]
    return RankTable(
        rank=rank,
        host=str(content.facts.get("host", "")),
        kind=_unpacked(kind_of, code).astype(np.uint8),
        flags=_unpacked(flags_of, code).astype(np.uint8),
        name_id=_unpacked(name_of, code).astype(np.int32),
        start_ns=start_ns,
        duration_ns=duration_ns,
        value=value,
        ref=ref,
        names=tuple(content.names.get(number, "") for number in range(max(content.names, default=-1) + 1)),
        facts=content.facts,
        counters=counters,
        is_cut=content.is_cut,
        ended_ns=_ended_ns(content.facts),
    )


def _ended_ns(facts: dict[str, Any]) -> int | None:
    """The last pair of clocks is taken when the script has ended."""
    pairs = facts.get("clock_pairs")
    return int(pairs[-1][0]) if facts.get("ended") and pairs else None


def _unpacked(unpack: Any, code: Int64s) -> Int64s:
    """The functions of `schema.event` are typed for one code; on an array they do the same to all."""
    return cast(Int64s, unpack(code))


def _read_blocks(path: Path) -> _Content:
    content = _Content()
    check_plain(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TopoutError(
            f"{path} cannot be read.",
            why=error.strerror or str(error),
            do="check the permissions of the run folder",
            exit_code=ExitCode.ENVIRONMENT,
        ) from error
    end = 0
    for block_type, payload, block_end in _whole_blocks(path, data):
        if not _take(content, block_type, payload):
            break
        end = block_end
    content.is_cut = end < len(data)
    return content


def _whole_blocks(path: Path, data: bytes) -> Iterator[tuple[int, memoryview, int]]:
    """(type, payload, where the block ends), up to the first block that does not hold."""
    at, view = 0, memoryview(data)
    while at + HEADER.size <= len(data):
        magic, version, block_type, num_bytes, crc = HEADER.unpack_from(data, at)
        payload = view[at + HEADER.size : at + HEADER.size + num_bytes]
        is_sound = magic == MAGIC and len(payload) == num_bytes and is_whole(payload, crc)
        # a newer format may check its blocks in another way, so the first header alone decides there
        if magic == MAGIC and version > VERSION and (at == 0 or is_sound):
            raise TopoutError(
                f"{path} was written by a newer topout.",
                why=f"its blocks are of version {version}, this topout reads up to {VERSION}",
                do=TO_READ_NEWER,
            )
        if not is_sound:
            return
        at += HEADER.size + num_bytes
        yield block_type, payload, at


def _take(content: _Content, block_type: int, payload: memoryview) -> bool:
    """False when a block is whole but holds nonsense: nothing after it can be trusted either."""
    if block_type == BlockType.ROWS:
        if len(payload) % _ROW_BYTES:
            return False
        content.columns.append(np.frombuffer(payload, dtype="<i8").reshape(len(COLUMNS), -1))
        return True
    try:
        parsed = json.loads(bytes(payload)) if block_type in (BlockType.NAMES, BlockType.FACTS) else None
    except ValueError:
        return False
    if block_type == BlockType.NAMES:
        if not isinstance(parsed, list) or not parsed or not isinstance(parsed[0], int):
            return False
        if not 0 <= parsed[0] < _MAX_NAMES:
            return False
        content.names.update(enumerate(map(str, parsed[1:]), parsed[0]))
    elif block_type == BlockType.FACTS and isinstance(parsed, dict):
        content.facts.update(parsed)
    return True


def _counters(names: dict[int, str], table: Int64s) -> dict[str, Counter]:
    rows = np.flatnonzero(_unpacked(kind_of, table[0]) == Kind.COUNTER)
    name_ids = _unpacked(name_of, table[0, rows])
    found = {}
    for name_id in np.unique(name_ids):
        own = rows[name_ids == name_id]
        own = own[np.argsort(table[1, own], kind="stable")]
        found[names.get(int(name_id), "")] = Counter(times_ns=table[1, own], values=table[3, own])
    return found
