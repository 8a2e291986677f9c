"""Samples in pages: what was put is read, what was dropped is gone, and a new writer finds what is true."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topout.feed.staging.arena import NO_PAGE, Arena, ArenaLayout, ArenaView, create_arena, page_size_for


def record(sample, length):
    return bytes((sample * 7 + place) % 251 for place in range(length))


def make(path, lengths, num_pages=16, page_bytes=64):
    layout = ArenaLayout(pack_key="k", num_samples=len(lengths), page_bytes=page_bytes, num_pages=num_pages)
    create_arena(path, layout)
    return Arena(path, layout, np.array(lengths))


def put(arena, sample, length):
    arena.put(sample, arena.reserve(sample), record(sample, length))


def test_a_sample_on_scattered_pages_is_read_whole(tmp_path):
    lengths = [64, 64, 64, 200, 130]
    arena = make(tmp_path / "arena.bin", lengths, num_pages=5)
    for sample in (0, 1, 2):
        put(arena, sample, 64)
    arena.drop(1)
    put(arena, 4, 130)
    assert arena.pages_of(4, 3) == [1, 3, 4]
    view = ArenaView(tmp_path / "arena.bin", ArenaLayout.of_file(tmp_path / "arena.bin"))
    assert view.read(4, 130) == record(4, 130)
    assert view.read(0, 64) == record(0, 64)
    assert view.read(1, 64) is None
    assert view.samples().tolist() == [0, 2, 4]
    assert arena.free_bytes == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=8), st.lists(st.integers(0, 7), max_size=40))
def test_any_sequence_of_puts_and_drops_reads_back(tmp_path_factory, lengths, touched):
    path = tmp_path_factory.mktemp("arena") / "arena.bin"
    arena, there = make(path, lengths), set()
    for sample in (number % len(lengths) for number in touched):
        if sample in there:
            arena.drop(sample)
            there.remove(sample)
        elif arena.num_pages(sample) * 64 <= arena.free_bytes:
            put(arena, sample, lengths[sample])
            there.add(sample)
        for other in there:
            assert arena.read(other, lengths[other]) == record(other, lengths[other])
    arena.close()
    again = Arena(path, ArenaLayout.of_file(path), np.array(lengths))
    used = sum(again.num_pages(sample) for sample in there)
    assert set(again.samples().tolist()) == there
    assert again.free_bytes == (16 - used) * 64


def test_entries_that_share_a_page_after_a_crash_of_the_host_are_struck_out(tmp_path):
    arena = make(tmp_path / "arena.bin", [64, 64, 200])
    put(arena, 0, 64)
    put(arena, 2, 200)
    arena._first[1] = arena._first[0]
    arena._chain[arena.pages_of(2, 4)[1]] = NO_PAGE
    arena.close()
    again = Arena(tmp_path / "arena.bin", ArenaLayout.of_file(tmp_path / "arena.bin"), np.array([64, 64, 200]))
    assert again.samples().tolist() == [0]
    assert again.free_bytes == 15 * 64


@pytest.mark.parametrize("rubbish", [b"", b"TOPOUTAR", b"\xff" * 5000])
def test_a_file_that_is_no_arena_is_not_taken_for_one(tmp_path, rubbish):
    (tmp_path / "arena.bin").write_bytes(rubbish)
    assert ArenaLayout.of_file(tmp_path / "arena.bin") is None


def test_an_arena_cut_short_is_not_taken_for_one(tmp_path):
    make(tmp_path / "arena.bin", [64]).close()
    data = (tmp_path / "arena.bin").read_bytes()
    (tmp_path / "arena.bin").write_bytes(data[:-1])
    assert ArenaLayout.of_file(tmp_path / "arena.bin") is None


def test_an_arena_keeps_to_its_budget():
    for budget_bytes in (0, 5000, 9000, 100_000, 12_345_678):
        layout = ArenaLayout.within(budget_bytes, pack_key="k", num_samples=100, page_bytes=832)
        assert layout.num_pages == 0 or layout.num_bytes <= budget_bytes
    assert layout.num_pages > 14_000


@pytest.mark.parametrize(
    ("lengths", "waste"), [([784] * 50, 0.07), (range(500, 3500, 7), 0.15), (range(60_000, 110_000, 99), 0.05)]
)
def test_pages_waste_little(lengths, waste):
    lengths = np.array(lengths)
    page_bytes = page_size_for(lengths)
    assert (-(-lengths // page_bytes) * page_bytes).sum() <= lengths.sum() * (1 + waste)
    assert page_bytes % 64 == 0
