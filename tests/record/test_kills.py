"""A rank killed at any moment leaves a file that is readable up to its last whole block.

A sample of twenty kills runs with the other tests, its seed taken from the commit; `make soak` runs five hundred.
"""

import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.conftest import REPOSITORY
from topout.schema.event import Kind
from topout.schema.run_folder import RunFolder
from topout.trace.readers.topout import read_rank

SCRIPT = REPOSITORY / "tests" / "scripts" / "endless.py"
AT_ONCE = 4
"""Ranks under way; most of their time they start."""


def kill_once(folder, after_s):
    """Number of whole steps found in the file of a rank that was killed `after_s` after its first block."""
    folder.mkdir()
    events = RunFolder(folder).events(0)
    rank = subprocess.Popen(
        [sys.executable, "-P", "-m", "topout.record.rank", str(SCRIPT)],
        env={**os.environ, "TOPOUT_RUN": str(folder), "RANK": "0", "WORLD_SIZE": "1"},
    )
    try:
        deadline = time.monotonic() + 60
        while not (events.exists() and events.stat().st_size > 2000):
            assert time.monotonic() < deadline, "the rank recorded nothing"
            time.sleep(0.002)
        time.sleep(after_s)
    finally:
        rank.send_signal(signal.SIGKILL)
        rank.wait()
    table = read_rank(RunFolder(folder), 0)
    steps = table.ref[table.rows(Kind.STEP)]
    assert np.array_equal(steps, np.arange(len(steps))), "steps are missing in the middle"
    return len(steps)


def campaign(tmp_path, num_kills, seed):
    draw = random.Random(seed)
    folders = [tmp_path / str(number) for number in range(num_kills)]
    moments_s = [draw.uniform(0, 1.1) for _ in folders]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(kill_once, folders, moments_s))
    assert min(found) > 0
    return found


def test_twenty_kills_leave_readable_files(tmp_path, seed_of_commit):
    campaign(tmp_path, 20, seed_of_commit)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_five_hundred_kills_leave_readable_files(tmp_path):
    found = campaign(tmp_path, 500, 1)
    print(f"500 kills, seed 1: every file readable; {min(found)} to {max(found)} whole steps")
