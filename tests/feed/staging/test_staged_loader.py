"""A loader over a pack that is staged gives the batches of the same pack on a disk, whatever is near at the time."""

import pytest

from tests.feed.staging.packs import PackServer, eventually
from tests.native.test_jpeg import encoded, picture
from topout.feed.augment import train_images
from topout.feed.loader import Loader
from topout.feed.staging.staged_pack import StagedPack
from topout.feed.staging.stager import StagingOptions
from topout.packs.fields import Field
from topout.packs.packing.writer import PackWriter

NUM_SAMPLES = 48


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("TOPOUT_STAGE", str(tmp_path / "near"))
    fields = [Field(name="image", kind="jpeg"), Field(name="label", kind="int")]
    with PackWriter(tmp_path / "slow", fields=fields, shard_bytes=20_000) as writer:
        for number in range(NUM_SAMPLES):
            writer.add(f"{number}.jpg", {"image": encoded(picture(60, 50, number)), "label": number})
    return tmp_path / "slow"


def batches(loader, num_epochs=3):
    return [
        (images.clone(), labels.clone()) for _ in range(num_epochs) for images, labels in loader
    ]  # fmt: skip


def check_alike(found, expected):
    assert len(found) == len(expected)
    for (images, labels), (other_images, other_labels) in zip(found, expected, strict=True):
        assert (labels == other_labels).all()
        assert (images == other_images).all()


@pytest.mark.parametrize("unit", ["shards", "samples"])
def test_a_loader_stages_a_slow_folder_ahead_and_gives_the_same_batches(source, unit):
    options = {"transform": train_images(32), "seed": 3}
    with Loader(source, 8, **options) as plain:
        expected = batches(plain)
    budget_bytes = sum(path.stat().st_size for path in source.iterdir()) * (4 if unit == "shards" else 1)
    with Loader(source, 8, stage=StagingOptions(budget_bytes=budget_bytes, unit=unit), **options) as staged:
        check_alike(batches(staged), expected)
        (pack,) = staged.packs.packs
        assert isinstance(pack, StagedPack)
        eventually(lambda: pack.staging()["num_staged"] > 0)


def test_a_pack_behind_an_address_is_loaded_and_staged(source):
    options = {"transform": train_images(32), "seed": 4}
    with Loader(source, 8, **options) as plain:
        expected = batches(plain)
    with PackServer(source) as server, Loader(server.address, 8, **options) as remote:
        check_alike(batches(remote), expected)
        (pack,) = remote.packs.packs
        assert isinstance(pack, StagedPack)
        eventually(lambda: pack.is_near)
        num_answers = server.num_answers
        batches(remote, 1)
        assert server.num_answers == num_answers


def test_a_resumed_loader_goes_on_where_it_stood(source):
    options = {"transform": train_images(32), "seed": 5, "stage": True}
    with Loader(source, 8, **options) as loader:
        expected = batches(loader, 2)
    with Loader(source, 8, **options) as first:
        taken = iter(first)
        early = [(images.clone(), labels.clone()) for images, labels in (next(taken), next(taken))]
        state = first.state_dict()
    with Loader(source, 8, **options) as second:
        second.load_state_dict(state)
        check_alike(early + batches(second, 2), expected)
