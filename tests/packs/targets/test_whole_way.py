"""From every source into a pack, from there into every target, and the samples are the same at each station."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.packs.sources.reading import is_same, jpeg
from tests.packs.sources.test_lmdb import write_lmdb
from tests.packs.sources.test_parquet import write as write_arrow
from tests.packs.sources.test_tar import write_tar
from topout.packs.foreign.example import write_example
from topout.packs.foreign.tfrecord_frames import frame
from topout.packs.pack import open_pack
from topout.packs.packing.options import PackOptions
from topout.packs.packing.packer import pack
from topout.packs.sources import BadEntry, open_source
from topout.packs.targets import unpack

MDS = Path(__file__).parent.parent / "sources" / "mds_sample" / "compressed"
NUM_SAMPLES = 12


def make_tar(folder: Path) -> Path:
    members = {f"{n:02d}.{e}": d for n in range(NUM_SAMPLES) for e, d in (("jpg", jpeg(n)), ("cls", b"%d" % n))}
    return write_tar(folder / "a.tar", members)


def make_lmdb(folder: Path) -> Path:
    write_lmdb(folder / "l", {b"k%02d" % n: jpeg(n) for n in range(NUM_SAMPLES)})
    return folder / "l"


def make_tfrecord(folder: Path) -> Path:
    features = ({"x": [jpeg(n)], "y": np.array([n]), "t": np.arange(n, n + 4)} for n in range(NUM_SAMPLES))
    (folder / "a.tfrecord").write_bytes(b"".join(frame(write_example(each)) for each in features))
    return folder / "a.tfrecord"


def make_hdf5(folder: Path) -> Path:
    with h5py.File(folder / "a.h5", "w") as file:
        file["x"] = np.arange(NUM_SAMPLES * 6, dtype="f4").reshape(NUM_SAMPLES, 2, 3)
        file["y"] = np.arange(NUM_SAMPLES)
    return folder / "a.h5"


def make_parquet(folder: Path) -> Path:
    write_arrow(folder / "a.parquet", "parquet")
    return folder / "a.parquet"


def make_arrow(folder: Path) -> Path:
    write_arrow(folder / "a.arrow", "stream")
    return folder / "a.arrow"


def make_numpy(folder: Path) -> Path:
    np.savez(
        folder / "a.npz", x=np.arange(NUM_SAMPLES * 6, dtype="u2").reshape(NUM_SAMPLES, 6), y=np.arange(NUM_SAMPLES)
    )
    return folder / "a.npz"


def make_mds(folder: Path) -> Path:
    return MDS


MAKERS = [make_tar, make_lmdb, make_tfrecord, make_hdf5, make_parquet, make_arrow, make_numpy, make_mds]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__.removeprefix("make_"))
def test_samples_are_the_same_in_source_pack_and_every_target(tmp_path, make):
    path = make(tmp_path)
    plugin, listing = open_source(path)
    found = listing.read_range(0, len(listing.names))
    expected = {name: sample for name, sample in zip(listing.names, found, strict=True) if fits(sample)}
    pack(listing, (plugin, path), tmp_path / "pack", PackOptions(shard_bytes=2000, num_workers=2, on_error="skip"))
    with open_pack(tmp_path / "pack") as opened:
        assert len(opened.shards) > 1 or listing.sizes.sum() < 2000
        assert [opened.name(number) for number in range(len(opened))] == list(expected)
        assert is_same(dict(enumerate(opened.samples(range(len(opened))))), dict(enumerate(expected.values())))
        for target in ("webdataset", "lmdb", "tfrecord", "hdf5"):
            there = tmp_path / f"{target}.h5"
            unpack(opened, there, target)
            _, again = open_source(there, {"webdataset": "tar"}.get(target, target))
            back = dict(zip(again.names, again.read_range(0, len(again.names)), strict=True))
            assert is_same({key: back[key] for key in sorted(back)}, {key: expected[key] for key in sorted(expected)})


def fits(sample: object) -> bool:
    """The last of the MDS samples has a number of 67 bits, which packing leaves out."""
    return not isinstance(sample, BadEntry) and sample.get("digits") != 10**20
