"""What goes from a pack to another format and is read from there again is what the pack held."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.packs.sources.reading import is_same, jpeg, make_pack, png, read_all
from topout.packs.damage import DamagedSample
from topout.packs.fields import Field
from topout.packs.pack import open_pack
from topout.packs.sources import choose_source
from topout.packs.targets import unpack
from topout.schema.errors import TopoutError

FIELDS = [
    Field(name="image", kind="jpeg"),
    Field(name="label", kind="int"),
    Field(name="mask", kind="png"),
    Field(name="weight", kind="float"),
    Field(name="caption", kind="str"),
    Field(name="meta", kind="json"),
    Field(name="blob", kind="bytes"),
    Field(name="box", kind="array", shape=(2, 2), dtype="<f4"),
    Field(name="points", kind="array"),
]
SAMPLES = {
    "n01/a.jpg": {
        "image": jpeg(1),
        "label": 0,
        "mask": png(1),
        "weight": 0.1,
        "caption": "grün",
        "meta": {"a": [1, None, "x"]},
        "blob": b"",
        "box": np.array([[1, 2], [3, 4]], "<f4"),
        "points": np.zeros((0, 3), "<i2"),
    },
    "n01/a.png": {
        "image": jpeg(2),
        "label": -(2**63),
        "mask": png(2),
        "weight": math.inf,
        "caption": "",
        "meta": [],
        "blob": b"\0\xff\n",
        "box": np.array([[np.nan, -0.0], [3, 4]], "<f4"),
        "points": np.arange(6, dtype="<f8").reshape(2, 3),
    },
    "strange\nname.with dots/ü\udcff.jpg": {
        "image": jpeg(3),
        "label": 2**63 - 1,
        "mask": png(3),
        "weight": -1e300,
        "caption": "line\nline",
        "meta": "text",
        "blob": bytes(range(256)),
        "box": np.zeros((2, 2), "<f4"),
        "points": np.array(7, "|u1"),
    },
}
TARGETS = {"webdataset": "tar", "lmdb": "lmdb", "tfrecord": "tfrecord", "hdf5": "hdf5"}


def place(folder: Path, target: str) -> Path:
    return folder / ("out.h5" if target == "hdf5" else "out")


@pytest.mark.parametrize("target", TARGETS)
def test_every_kind_of_field_comes_back_as_it_was(tmp_path, target):
    with make_pack(tmp_path / "pack", FIELDS, SAMPLES, ["cat", "dog"]) as pack:
        unpack(pack, place(tmp_path, target), target)
        kept = pack.fields
    listing, found = read_all(place(tmp_path, target))
    assert listing.classes == ("cat", "dog")
    assert dict(zip(listing.names, found, strict=True)).keys() == SAMPLES.keys()
    for name, sample in zip(listing.names, found, strict=True):
        assert is_same(sample, SAMPLES[name])
    assert {field.name: field for field in listing.fields} == {field.name: field for field in kept}


@pytest.mark.parametrize("target", TARGETS)
def test_the_source_that_belongs_to_a_target_recognises_what_it_wrote(tmp_path, target):
    with make_pack(tmp_path / "pack", FIELDS, SAMPLES) as pack:
        unpack(pack, place(tmp_path, target), target)
    assert choose_source(place(tmp_path, target)) == TARGETS[target]


@pytest.mark.parametrize("target", [*TARGETS, "folder"])
def test_what_is_there_is_never_overwritten(tmp_path, target):
    there = place(tmp_path, target)
    there.mkdir()
    (there / "precious").write_text("mine")
    with make_pack(tmp_path / "pack", FIELDS[:2], {"a": {"image": jpeg(1), "label": 1}}) as pack:
        with pytest.raises(TopoutError, match=r"there already|is a folder"):
            unpack(pack, there, target)
    assert [entry.name for entry in there.iterdir()] == ["precious"]


@pytest.mark.parametrize("target", [*TARGETS, "folder"])
def test_a_damaged_sample_ends_unpacking_and_leaves_nothing(tmp_path, target):
    make_pack(tmp_path / "pack", FIELDS, SAMPLES).close()
    (shard,) = (tmp_path / "pack").glob("shard-*.bin")
    data = bytearray(shard.read_bytes())
    data[4096 + 40] ^= 1
    shard.write_bytes(data)
    with open_pack(tmp_path / "pack") as pack, pytest.raises(DamagedSample):
        unpack(pack, place(tmp_path, target), target)
    assert [entry.name for entry in tmp_path.iterdir()] == ["pack"]


@pytest.mark.parametrize("target", [*TARGETS, "folder"])
def test_a_damaged_sample_is_left_out_when_asked(tmp_path, target):
    samples = {f"{number}.jpg": {"image": jpeg(number)} for number in range(3)}
    make_pack(tmp_path / "pack", [Field(name="image", kind="jpeg")], samples).close()
    (shard,) = (tmp_path / "pack").glob("shard-*.bin")
    data = bytearray(shard.read_bytes())
    data[4096 + 40] ^= 1
    shard.write_bytes(data)
    with open_pack(tmp_path / "pack", on_damage="skip") as pack:
        unpack(pack, place(tmp_path, target), target)
    listing, found = read_all(place(tmp_path, target))
    assert list(listing.names) == ["1.jpg", "2.jpg"]
    assert [sample["image"] for sample in found] == [jpeg(1), jpeg(2)]


@pytest.mark.parametrize("target", TARGETS)
def test_what_a_killed_run_left_does_not_stand_in_the_way(tmp_path, target):
    left = place(tmp_path, target)
    left.with_name(f".{left.name}.unpacking").mkdir()
    (left.with_name(f".{left.name}.unpacking") / "half").write_text("x")
    with make_pack(tmp_path / "pack", FIELDS, SAMPLES) as pack:
        unpack(pack, left, target)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted([left.name, "pack"])


@pytest.mark.parametrize("target", [*TARGETS, "folder"])
def test_unpacking_killed_in_the_middle_leaves_nothing_at_its_place_and_can_be_done_again(tmp_path, target):
    samples = {f"{number}.jpg": {"image": jpeg(number)} for number in range(5)}
    make_pack(tmp_path / "pack", [Field(name="image", kind="jpeg")], samples).close()
    unpacking = """
import sys, time
from pathlib import Path
from topout.packs.pack import open_pack
from topout.packs.targets import unpack
from topout.schema.errors import TopoutError

class Stuck:
    num_left = 3
    def add(self, num_samples, num_bytes):
        self.num_left -= 1
        if not self.num_left:
            print("stuck", flush=True)
            time.sleep(60)

unpack(open_pack(Path(sys.argv[1])), Path(sys.argv[2]), sys.argv[3], Stuck())
"""
    there = place(tmp_path, target)
    command = [sys.executable, "-c", unpacking, tmp_path / "pack", there, target]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"stuck\n"
        process.kill()
    assert not there.exists() and there.with_name(f".{there.name}.unpacking").exists()
    with open_pack(tmp_path / "pack") as pack:
        unpack(pack, there, target)
    listing, _ = read_all(there)
    assert list(listing.names) == list(samples)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted([there.name, "pack"])


NAMES = st.text(st.characters(exclude_characters="\0/", exclude_categories=("Cs",)), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..", "fields.jsonl")
)
SCALARS = st.fixed_dictionaries(
    {
        "label": st.integers(-(2**63), 2**63 - 1),
        "weight": st.floats(allow_nan=False),
        "caption": st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20),
        "blob": st.binary(max_size=50),
    }
)


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(samples=st.dictionaries(NAMES, SCALARS, min_size=1, max_size=5))
def test_any_names_and_values_come_back(tmp_path_factory, target, samples):
    fields = [
        Field(name="blob", kind="bytes"),
        Field(name="label", kind="int"),
        Field(name="weight", kind="float"),
        Field(name="caption", kind="str"),
    ]
    folder = tmp_path_factory.mktemp("any")
    with make_pack(folder / "pack", fields, samples) as pack:
        unpack(pack, place(folder, target), target)
    listing, found = read_all(place(folder, target))
    assert is_same(dict(zip(listing.names, found, strict=True)), samples)
