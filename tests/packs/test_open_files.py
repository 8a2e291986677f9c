"""A pack may have more shards than a process may have files open: 1,024 of them are 260 GB."""

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.packs.packs import sample, small_pack
from topout.native.bindings import library
from topout.packs.pack import open_pack
from topout.packs.pack_view import NativePack

NUM_SHARDS = 40
LIMITED = """
import os, resource, sys
from pathlib import Path
import numpy as np
import topout.native.bindings
from topout.cli import data
from topout.packs.pack import open_pack
from topout.packs.packing.options import PackOptions
from topout.packs.packing.packer import pack as pack_again
from topout.packs.reading_rates import reading_rates
from topout.packs.sources import open_source
from topout.packs.targets import unpack

topout.native.bindings.library()
path = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[2])))
"""
SEVERAL_PACKS = """
packs = [open_pack(path) for _ in range(3)]
for pack in packs:
    assert [one["label"] for one in pack.samples(range(40))] == list(range(-3, 37))
    assert pack.gather(range(40))["pixels"].shape == (40, 2, 3)
"""
SEQUENTIAL = {
    "unpack": "unpack(open_pack(path), path.with_name('out'), 'folder')",
    "convert": """
name, listing = open_source(path)
report = pack_again(listing, (name, path), path.with_name("again"), PackOptions(shard_bytes=1))
assert len(report.manifest.shards) == 40
""",
    "bench": "assert {rate.num_samples for rate in reading_rates(open_pack(path))} == {40}",
    "check": "assert data.check(path) == 0",
    "two packs by turns": """
first, second = open_pack(path), open_pack(path)
for number in range(40):
    assert first.sample(number)["label"] == second.sample(number)["label"] == number - 3
""",
    "after a gather": """
pack = open_pack(path)
assert pack.gather(range(40))["label"].shape == (40,)
assert [one["label"] for one in pack.samples(range(40))] == list(range(-3, 37))
""",
    "at random": """
order = np.random.default_rng(1).integers(0, 40, 400).tolist()
assert [one["label"] + 3 for one in open_pack(path).samples(order)] == order
""",
}


@pytest.fixture
def path(tmp_path):
    manifest = small_pack(tmp_path / "pack", num_samples=NUM_SHARDS, shard_bytes=1)
    assert len(manifest.shards) == NUM_SHARDS
    return tmp_path / "pack"


def run_limited(path, most, code):
    command = [sys.executable, "-c", LIMITED + code, path, str(most)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_limit_is_raised_as_far_as_it_goes(path):
    run_limited(path, 4096, SEVERAL_PACKS)


@pytest.mark.parametrize("code", SEQUENTIAL.values(), ids=SEQUENTIAL)
def test_samples_are_read_where_not_all_shards_can_be_open(path, code):
    run_limited(path, 64, code)


def num_open():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    "read", [lambda pack, numbers: pack.samples(numbers), lambda pack, numbers: pack.gather(numbers)]
)
def test_a_shard_takes_one_descriptor(path, read):
    before = num_open()
    with open_pack(path) as pack:
        read(pack, range(NUM_SHARDS))
        # index and names are files as well
        assert num_open() <= before + NUM_SHARDS + 2
    assert num_open() == before


def test_a_shard_that_rests_while_it_is_read_is_read_to_the_end(path):
    with open_pack(path) as pack:
        descriptor = pack.shards[0].descriptor
        pack.shards[0].rest()
        assert len(os.pread(descriptor.number, 4096, 0)) == 4096
        assert pack.sample(0)["label"] == sample(0)["label"]
        number = descriptor.number
        del descriptor
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)


def test_what_the_library_reads_stays_open_while_shards_rest(path):
    with open_pack(path) as pack:
        native = NativePack(pack, library(), is_mapped=False)
        native.open_shards(np.arange(NUM_SHARDS))
        for shard in pack.shards:
            shard.rest()
        assert (
            native.gather(np.arange(NUM_SHARDS), pack.layout.fixed)["pixels"][7].tolist()
            == sample(7)["pixels"].tolist()
        )
