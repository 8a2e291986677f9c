"""A script cannot tell a packed folder from the folder: the same answers to every call, with the folder gone."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.feed.serve.packs import STRANGE, pack_folder, run_served, write_tree

SCRIPT = Path(__file__).parent / "scripts" / "many_ways.py"


@pytest.fixture
def folder(tmp_path):
    files = {name: os.fsencode(name) for name in STRANGE}
    files |= {"words.txt": "einß\r\nzwei\ndrei".encode(), "deep/er/data.bin": bytes(range(256)) * 400, "empty": b""}
    root = write_tree(tmp_path / "data", files)
    np.save(root / "x.npy", np.arange(1000))
    np.savez(root / "x.npz", a=np.arange(5), b=np.ones(3))
    return root


def answers(root, *orders):
    # those two keep references to functions of their own, so they are there first
    code = f"import sys, glob, pathlib; sys.argv = ['many_ways.py', {str(root)!r}]\n{SCRIPT.read_text()}"
    done = run_served(code, *orders)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_every_call_gives_the_same_from_a_pack_as_from_the_folder(codec, folder, tmp_path):
    pack = pack_folder(folder, tmp_path / "pack", codecs={"data": codec})
    plain = answers(folder)
    assert len(plain) > 50 and plain["missing"][:2] == ["FileNotFoundError", 2]
    assert answers(folder, f"{folder}={pack}") == plain
    shutil.rmtree(folder)
    assert answers(folder, f"{folder}={pack}") == plain
