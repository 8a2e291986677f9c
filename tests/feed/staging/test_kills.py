"""The process that stages may be killed at any moment: no torn copy is read, and another goes on at once.

A sample of twenty kills runs with the other tests; `make soak` runs two hundred.
"""

import random
import signal
import subprocess
import sys
import time
from itertools import cycle

import pytest

from tests.conftest import REPOSITORY
from tests.feed.staging.packs import contents, course_of, eventually, make_pack
from topout.feed.staging.arena import ArenaLayout, ArenaView
from topout.feed.staging.staged_pack import open_staged
from topout.feed.staging.stager import StagingOptions
from topout.packs.checksum import crc32c
from topout.packs.layout import row_crc

NUM_SAMPLES = 150
BUDGETS = {"samples": 150_000, "shards": 1 << 20}


def start_rank(source, near, unit):
    command = [sys.executable, "-m", "tests.feed.staging.slow_rank", source, near, unit, str(BUDGETS[unit])]
    rank = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    assert rank.stdout.readline() == "ready\n"
    return rank


def whole_copies(pack):
    """Staged items, each of which must be what the pack holds."""
    folder, staged = pack.staging_folder, 0
    layout = ArenaLayout.of_file(folder.arena)
    if layout is not None:
        view = ArenaView(folder.arena, layout)
        for number in view.samples().tolist():
            row = pack.index[number]
            record = view.read(number, int(row["length"]))
            assert row_crc(crc32c(record), row.tobytes(), number) == int(row["crc"]), f"sample {number} is torn"
            staged += 1
        view.close()
    for path in folder.path.glob("shard-*.bin"):
        assert path.read_bytes() == (pack.origin.folder / path.name).read_bytes(), f"{path.name} is torn"
        staged += 1
    return staged


def follow(pack, unit):
    options = StagingOptions(budget_bytes=BUDGETS[unit], unit=unit)
    pack.follow(course_of(NUM_SAMPLES, world_size=2, ranks=(0, 1)), options, rank=1)


def kill_once(source, near, unit, after_s):
    """Kills the rank that stages, looks at what it left, and lets another go on; copies and unfinished copies found."""
    rank = start_rank(source, near, unit)
    try:
        time.sleep(after_s)
        rank.send_signal(signal.SIGKILL)
        rank.wait()
        with open_staged(source, root=near) as pack:
            found = whole_copies(pack), len(list(pack.staging_folder.path.glob("*.tmp")))
            for number in range(0, NUM_SAMPLES, 3):
                assert pack.sample(number)["data"] == contents(number)
            follow(pack, unit)
            # what was left may be all that the next one needs, so that it stages nothing
            eventually(lambda: pack._stager.num_looks >= 2)
            pack.leave()
            assert not list(pack.staging_folder.path.glob("*.tmp"))
            whole_copies(pack)
            return found
    finally:
        rank.kill()
        rank.wait()
        rank.stdout.close()


def campaign(tmp_path, num_kills, seed):
    source, draw = make_pack(tmp_path / "slow", NUM_SAMPLES), random.Random(seed)
    found = []
    for number, unit in zip(range(num_kills), cycle(BUDGETS), strict=False):
        # shards are soon all there, so each kill has a folder of its own; samples go on where the last kill left them
        near = tmp_path / (f"shards-{number}" if unit == "shards" else f"samples-{number // 8}")
        found.append(kill_once(source, near, unit, draw.uniform(0, 0.12)))
    assert max(copies for copies, _ in found) > 10
    assert any(unfinished for _, unfinished in found), "no kill fell into a copy"
    return found


@pytest.mark.alone
def test_twenty_kills_leave_whole_copies_and_another_goes_on(tmp_path):
    campaign(tmp_path, 20, seed=4)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_hundred_kills_leave_whole_copies_and_another_goes_on(tmp_path):
    found = campaign(tmp_path, 200, seed=1)
    unfinished = sum(count > 0 for _, count in found)
    print(f"200 kills, seed 1: every copy whole; {unfinished} kills fell into the copy of a shard")


def test_a_rank_that_waits_takes_over_when_the_one_that_stages_is_killed(tmp_path):
    source = make_pack(tmp_path / "slow", NUM_SAMPLES)
    rank = start_rank(source, tmp_path / "near", "samples")
    with open_staged(source, root=tmp_path / "near") as pack:
        follow(pack, "samples")
        for number in range(NUM_SAMPLES):
            assert pack.sample(number)["data"] == contents(number)
        assert not pack._stager.is_holder
        rank.kill()
        rank.wait()
        rank.stdout.close()
        eventually(lambda: pack._stager.is_holder)
        assert pack.staging()["holder_pid"] != rank.pid


@pytest.mark.alone
def test_a_reader_never_sees_a_torn_sample_while_the_arena_is_rewritten(tmp_path):
    """One process stages and evicts as fast as it can; this one reads all the time."""
    source = make_pack(tmp_path / "slow", NUM_SAMPLES)
    rank = start_rank(source, tmp_path / "near", "samples")
    try:
        with open_staged(source, root=tmp_path / "near") as pack:
            pack.follow(course_of(NUM_SAMPLES, world_size=2), StagingOptions(budget_bytes=150_000), rank=7)
            draw = random.Random(2)
            for _ in range(4000):
                number = draw.randrange(NUM_SAMPLES)
                assert pack.sample(number)["data"] == contents(number)
            assert pack.counts().hits > 100
            assert pack.staging()["num_evicted"] > 0
    finally:
        rank.kill()
        rank.wait()
        rank.stdout.close()
