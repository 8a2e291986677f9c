"""A rank that stages from a slow folder until it is killed; its arguments: SOURCE NEAR UNIT BUDGET_BYTES.

It writes `ready` when it is the one that stages. Copies are made of small parts, so that kills fall between them.
"""

import os
import sys
import time
from pathlib import Path

from tests.feed.staging.packs import course_of
from topout.feed.staging import arena, shards
from topout.feed.staging.origin import FolderOrigin
from topout.feed.staging.staged_pack import open_staged
from topout.feed.staging.stager import StagingOptions


class SlowFolder(FolderOrigin):
    def read(self, name, start, num_bytes):
        time.sleep(0.001)
        return super().read(name, start, num_bytes)


def write_slowly(file, data, offset):
    half = len(data) // 2
    os.pwrite(file, data[:half], offset)
    time.sleep(0.002)
    os.pwrite(file, data[half:], offset + half)


def main():
    source, near, unit, budget = sys.argv[1:]
    shards._CHUNK_BYTES = 4096
    arena._write_all = write_slowly
    pack = open_staged(source, root=Path(near))
    pack.origin = SlowFolder(Path(source))
    course = course_of(len(pack), world_size=2, ranks=(0, 1))
    pack.follow(course, StagingOptions(budget_bytes=int(budget), unit=unit), rank=0)
    while not pack._stager.is_holder:
        time.sleep(0.001)
    print("ready", flush=True)
    for step in range(1 << 30):
        # faster than the staging, so that much is fetched, kept and let go
        pack.advance(2 * step)
        time.sleep(0.001)


if __name__ == "__main__":
    main()
