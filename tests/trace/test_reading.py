"""Reading recordings: whole blocks come back exactly, torn ones are left alone, newer ones are refused."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import Plan, Rows, StepPlan, build_run
from topout.schema.block import HEADER, MAGIC, BlockType, seal
from topout.schema.errors import TopoutError
from topout.schema.event import Flag, Kind
from topout.schema.run_folder import RunFolder
from topout.trace.readers.topout import read_rank, read_run


def _columns(table) -> list[tuple[int, ...]]:
    return list(zip(table.kind.tolist(), table.start_ns.tolist(), table.duration_ns.tolist(), strict=True))


def test_rows_names_and_facts_come_back(tmp_path: Path) -> None:
    rows = Rows()
    rows.add(Kind.SPAN, 500, 40, name="augment", value=7, ref=3, flags=Flag.OFF_MAIN_THREAD)
    rows.add(Kind.STEP, 100, 900, ref=0)
    folder = RunFolder(tmp_path)
    folder.events(2).write_bytes(b"".join(rows.blocks({"host": "n07", "batch_size": 32})))
    table = read_rank(folder, 2)
    assert (table.rank, table.host, table.facts["batch_size"], table.is_cut) == (2, "n07", 32, False)
    assert _columns(table) == [(Kind.STEP, 100, 900), (Kind.SPAN, 500, 40)]
    assert table.name(1) == "augment"
    assert table.flags.tolist() == [0, Flag.OFF_MAIN_THREAD]
    assert table.rows(Kind.SPAN).tolist() == []
    assert table.rows_of_any_thread(Kind.SPAN).tolist() == [1]


def test_later_facts_replace_earlier_ones(tmp_path: Path) -> None:
    blocks = [seal(BlockType.FACTS, json.dumps(facts).encode()) for facts in ({"a": 1, "b": 1}, {"a": 2})]
    RunFolder(tmp_path).events(0).write_bytes(b"".join(blocks))
    assert read_rank(RunFolder(tmp_path), 0).facts == {"a": 2, "b": 1}


def test_counters_of_both_files_stand_apart_from_rows(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    events, counters = Rows(), Rows()
    events.add(Kind.COUNTER, 10, name="file_opens", value=4)
    events.add(Kind.STEP, 0, 20, ref=0)
    counters.add(Kind.COUNTER, 30, name="read_bytes", value=900)
    counters.add(Kind.COUNTER, 20, name="read_bytes", value=800)
    folder.events(0).write_bytes(b"".join(events.blocks({})))
    folder.counters(0).write_bytes(b"".join(counters.blocks({})))
    table = read_rank(folder, 0)
    assert table.kind.tolist() == [Kind.STEP]
    assert table.counters["file_opens"].values.tolist() == [4]
    assert table.counters["read_bytes"].times_ns.tolist() == [20, 30]
    assert table.counters["read_bytes"].values.tolist() == [800, 900]


@given(data=st.data(), sizes=st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_a_file_cut_at_any_byte_is_read_up_to_the_last_whole_block(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, sizes: list[int]
) -> None:
    blocks, counts = [], [0]
    for number, size in enumerate(sizes):
        columns = np.arange(5 * size, dtype="<i8") + 1000 * number
        columns[:size] = Kind.SPAN
        blocks.append(seal(BlockType.ROWS, columns.tobytes()))
        counts.append(counts[-1] + size)
    whole = b"".join(blocks)
    at = data.draw(st.integers(0, len(whole)))
    ends = np.cumsum([0, *map(len, blocks)])
    num_whole = int(np.searchsorted(ends, at, side="right")) - 1
    folder = RunFolder(tmp_path_factory.mktemp("cut"))
    folder.events(0).write_bytes(whole[:at])
    table = read_rank(folder, 0)
    assert len(table.kind) == counts[num_whole]
    assert table.is_cut == (at != ends[num_whole])


@given(place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_costs_its_block_and_what_follows_only(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int
) -> None:
    blocks = []
    for number in range(3):
        rows = np.array([[Kind.SPAN], [number], [1], [0], [0]], dtype="<i8")
        blocks.append(seal(BlockType.ROWS, rows.tobytes()))
    damaged = bytearray(b"".join(blocks))
    place %= len(damaged)
    damaged[place] ^= 1 << bit
    hit = place // len(blocks[0])
    in_header = place % len(blocks[0])
    folder = RunFolder(tmp_path_factory.mktemp("flip"))
    folder.events(0).write_bytes(bytes(damaged))
    if 4 <= in_header < 6:  # the version, which the checksum does not cover
        try:
            assert len(read_rank(folder, 0).kind) >= hit
        except TopoutError as error:
            assert "newer" in error.problem
    elif 6 <= in_header < 8:  # the type: an unknown one is passed over
        assert len(read_rank(folder, 0).kind) >= hit
    else:
        assert read_rank(folder, 0).start_ns.tolist() == list(range(hit))


def test_a_newer_block_version_is_refused(tmp_path: Path) -> None:
    RunFolder(tmp_path).events(0).write_bytes(HEADER.pack(MAGIC, 9, BlockType.ROWS, 0, 0))
    with pytest.raises(TopoutError, match="newer topout") as caught:
        read_run(RunFolder(tmp_path))
    assert "version 9" in caught.value.why
    # it is in no index of packages
    assert caught.value.do == "install the topout that wrote it, or a newer one: pip install . in its folder"


@pytest.mark.parametrize(
    "block",
    [
        seal(BlockType.NAMES, b"not json"),
        seal(BlockType.NAMES, b'["no number", "x"]'),
        seal(BlockType.NAMES, b'[99999999999, "x"]'),
        seal(BlockType.ROWS, b"12345678"),
        struct.pack("<4sHHII", b"EVIL", 1, 1, 0, 0),
    ],
)
def test_nonsense_ends_the_reading(tmp_path: Path, block: bytes) -> None:
    good = seal(BlockType.FACTS, b'{"host": "n01"}')
    RunFolder(tmp_path).events(0).write_bytes(good + block + seal(BlockType.FACTS, b'{"host": "n02"}'))
    table = read_rank(RunFolder(tmp_path), 0)
    assert (table.host, table.is_cut) == ("n01", True)


def test_an_empty_folder_has_no_tables(tmp_path: Path) -> None:
    assert read_run(RunFolder(tmp_path)) == []


def test_ranks_come_in_order(tmp_path: Path) -> None:
    built = build_run(tmp_path / "run", [[StepPlan(forward=5, backward=5)]] * 11, Plan())
    assert [table.rank for table in read_run(built.folder)] == list(range(11))
