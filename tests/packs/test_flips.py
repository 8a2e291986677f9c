"""One flipped bit anywhere in a pack is found by `data check`, and never reaches a reader as good data.

A sample of flips runs with the other tests, its seed taken from the commit; `make soak` runs ten thousand.
"""

import random
from pathlib import Path

import numpy as np
import pytest

from tests.packs.packs import file_folder, flip, jpeg, pack_folder
from topout.packs.check import check_pack
from topout.packs.pack import open_pack
from topout.schema.errors import TopoutError


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    """Images with labels, some of them skipped; three shards."""
    folder = tmp_path_factory.mktemp("flips")
    for number in range(24):
        image = folder / "images" / f"class {number % 3}" / f"{number}.jpg"
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(jpeg(number, (24, 16)) if number % 8 else b"not an image")
    pack_folder(folder / "images", folder / "pack", shard_bytes=9000, on_error="skip")
    return folder / "pack"


def read_all(path: Path):
    """Every sample that is handed out; None for those that are refused."""
    try:
        pack = open_pack(path)
    except TopoutError:
        return None
    found = []
    with pack:
        for number in range(len(pack)):
            try:
                found.append(pack.sample(number))
            except TopoutError:
                found.append(None)
        try:
            labels = pack.column("label").tolist()
        except TopoutError:
            labels = None
    return found, labels


def campaign(path: Path, num_flips: int, seed: int) -> dict[str, int]:
    """Flips found in each file."""
    draw = random.Random(seed)
    samples, labels = read_all(path)
    files = sorted(path.iterdir())
    assert {file.name for file in files} >= {"pack.json", "index.bin", "names.bin", "skipped.txt", "shard-00002.bin"}
    sizes = np.array([file.stat().st_size for file in files])
    counts = dict.fromkeys((file.name for file in files), 0)
    for number in range(num_flips):
        # every file in turn, then by size, as a failing disk would
        file = files[number] if number < len(files) else draw.choices(files, sizes)[0]
        byte, bit = draw.randrange(file.stat().st_size), draw.randrange(8)
        flip(file, byte, bit)
        found = check_pack(path, num_threads=1)
        assert file.name in found.files, f"{file.name} byte {byte} bit {bit} was not found"
        read = read_all(path)
        if read is not None:
            handed_out, handed_labels = read
            for good, given in zip(samples, handed_out, strict=True):
                assert given is None or given == good, f"{file.name} byte {byte} bit {bit} was handed out"
            assert handed_labels in (None, labels)
        flip(file, byte, bit)
        counts[file.name] += 1
    assert check_pack(path).damages == ()
    return counts


def test_flips_are_found_and_never_handed_out(path, seed_of_commit):
    campaign(path, 300, seed_of_commit)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_ten_thousand_flips_are_found(path):
    counts = campaign(path, 10_000, 1)
    print(f"10,000 flips, seed 1: all found, none handed out; {counts}")


@pytest.mark.parametrize("what", ["padding", "footer", "header"])
def test_a_flip_where_no_sample_lies_is_found(tmp_path, what):
    pack_folder(file_folder(tmp_path / "files", 3, 13), tmp_path / "pack")
    shard = tmp_path / "pack" / "shard-00000.bin"
    with open_pack(tmp_path / "pack") as pack:
        first_end = int(pack.index["offset"][0] + pack.index["length"][0])
        places = {"padding": first_end, "footer": pack.shards[0].trailer.footer_offset + 3, "header": 2000}
        assert first_end < int(pack.index["offset"][1])
    flip(shard, places[what])
    found = check_pack(tmp_path / "pack")
    assert [(damage.file, damage.number) for damage in found.damages] == [("shard-00000.bin", None)]


def test_a_damaged_sample_is_named_by_the_check(path):
    with open_pack(path) as pack:
        row, name = pack.index[9].copy(), pack.name(9)
    shard = path / f"shard-{row['shard']:05d}.bin"
    flip(shard, int(row["offset"]) + 20)
    found = check_pack(path)
    flip(shard, int(row["offset"]) + 20)
    assert [(damage.file, damage.number, damage.name) for damage in found.damages] == [(shard.name, 9, name)]
