"""Opened files and listed folders are counted, in the rank and in the workers it forks."""

import subprocess
import sys
from pathlib import Path

CODE = """
import multiprocessing, os, sys
from topout.record.files import FileCounts
counts = FileCounts()
counts.install()
folder = sys.argv[1]
def read_files():
    for number in range(1000):
        open(os.path.join(folder, "x")).close()
    os.listdir(folder)
before = counts.totals()
read_files()
own = counts.totals()
workers = [multiprocessing.get_context("fork").Process(target=read_files) for _ in range(3)]
[w.start() for w in workers]; [w.join() for w in workers]
after = counts.totals()
print(own[0] - before[0], own[1] - before[1], (after[0] - own[0]) // 1000, after[1] - own[1])
"""


def test_forked_workers_are_counted_too(tmp_path: Path):
    (tmp_path / "x").write_text("")
    done = subprocess.run([sys.executable, "-c", CODE, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1000", "1", "3", "3"]
