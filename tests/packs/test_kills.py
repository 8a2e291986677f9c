"""Packing killed at any moment is gone on with, and ends in the same bytes as packing that was never killed.

Twenty kills run with the other tests, their seed taken from the commit; `make soak` runs two hundred. The processes are
forked: what they would import is not what is to be interrupted.
"""

import os
import random
import shutil
import signal
import time
import traceback
from pathlib import Path

import pytest

from tests.packs.packs import contents, file_folder, pack_folder
from topout.packs.check import check_pack


def start(source: Path, destination: Path) -> int:
    """The number of a process that packs."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            pack_folder(source, destination, shard_bytes=32 << 10, num_workers=2, codecs={"data": "zstd"})
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def end_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def await_shards(destination: Path, num_shards: int, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while num_done(destination) < num_shards and time.monotonic() < deadline:
        if (destination / "pack.json").exists():
            return
        time.sleep(0.0005)


def num_done(destination: Path) -> int:
    return len(list(destination.glob(".packing/*.rows")))


def campaign(tmp_path: Path, num_kills: int, seed: int) -> tuple[int, int, int]:
    """(packs finished, kills that met unfinished work, most shards found done after a kill)."""
    draw = random.Random(seed)
    source = file_folder(tmp_path / "files", 120, 9000)
    begun = time.monotonic()
    assert end_of(start(source, tmp_path / "reference")) == 0
    longest_s = time.monotonic() - begun
    expected = contents(tmp_path / "reference")
    assert len(expected) > 30
    destination, num_finished, num_interrupted, most_done, num_killed = tmp_path / "pack", 0, 0, 0, 0
    while num_killed < num_kills:
        pid = start(source, destination)
        if draw.random() < 0.5:
            # a busy machine packs at another pace than the first time: half the kills wait for work instead of time
            await_shards(destination, draw.randint(1, 20), longest_s)
            time.sleep(draw.uniform(0, 0.005))
        else:
            time.sleep(draw.uniform(0, longest_s))
        os.kill(pid, signal.SIGKILL)
        num_killed += end_of(pid) == -signal.SIGKILL
        if (destination / "pack.json").exists():
            # finished, whatever the kill met afterwards
            num_finished += 1
            there = {name: digest for name, digest in contents(destination).items() if not name.startswith(".packing")}
            assert there == expected
            shutil.rmtree(destination)
        else:
            num_interrupted += 1
            most_done = max(most_done, num_done(destination))
    assert end_of(start(source, destination)) == 0
    assert contents(destination) == expected
    assert check_pack(destination).damages == ()
    return num_finished + 1, num_interrupted, most_done


def test_twenty_kills_end_in_the_same_bytes(tmp_path, seed_of_commit):
    _, num_interrupted, most_done = campaign(tmp_path, 20, seed_of_commit)
    assert num_interrupted > 3
    assert most_done > 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_hundred_kills_end_in_the_same_bytes(tmp_path):
    num_finished, num_interrupted, most_done = campaign(tmp_path, 200, 1)
    print(
        f"200 kills, seed 1: {num_interrupted} met unfinished work; {num_finished} packs, all byte-identical;"
        f" up to {most_done} shards kept"
    )
