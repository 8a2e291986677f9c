"""Batches from packs: the right samples, pixels and labels, in every order there is."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.feed.image_packs import write_records
from topout import Loader
from topout.epoch import randomness
from topout.epoch.order import order
from topout.feed.augment import (
    ColorJitter,
    CutMix,
    MixUp,
    Normalize,
    eval_images,
    train_images,
)
from topout.feed.crop import place
from topout.feed.decode import open_rgb, render
from topout.packs.fields import Field
from topout.packs.pack import open_pack
from topout.packs.packing.writer import PackWriter
from topout.schema.errors import TopoutError


def by_hand(path: Path, seed: int, epoch: int, positions: range, transform, mean_std: bool) -> np.ndarray:
    """What the loader must give: each sample through Pillow alone, channels first."""
    height, width = transform.size
    with open_pack(path) as pack:
        samples = order(seed, epoch, len(pack)).at(np.array(positions))
        out = []
        for position, number in zip(positions, samples.tolist(), strict=True):
            image = open_rgb(pack.sample(number)["image"], "")
            window = place(transform, image.width, image.height, randomness.key(seed, epoch, position))
            out.append(render(image, window, height, width).transpose(2, 0, 1))
    pixels = np.stack(out)
    if not mean_std:
        return pixels
    mean, std = (np.array(part, dtype=np.float32).reshape(3, 1, 1) for part in (Normalize().mean, Normalize().std))
    return (pixels.astype(np.float32) / np.float32(255) - mean) / std


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16"])
@pytest.mark.parametrize("pipeline", ["native", "python"])
def test_batches_are_what_pillow_makes_of_each_image(
    images: Path, dtype: str, channels_last: bool, pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPOUT_FEED_PIPELINE", pipeline)
    transform = train_images(24)
    with Loader(images, 16, transform=transform, seed=5, dtype=dtype, channels_last=channels_last) as loader:
        batches = [(x.clone(), y.clone()) for x, y in loader]
        assert len(batches) == len(loader) == 2
        for number, (pixels, labels) in enumerate(batches):
            positions = range(16 * number, 16 * number + 16)
            expected = torch.from_numpy(by_hand(images, 5, 0, positions, transform, dtype != "uint8"))
            assert pixels.dtype == getattr(torch, dtype) and pixels.shape == (16, 3, 24, 24)
            if pipeline == "python":
                assert torch.equal(pixels, expected.to(pixels.dtype))
            level = 1.0 if dtype == "uint8" else 1 / 255 / 0.224
            assert (pixels.float() - expected.float()).abs().mean() < 0.5 * level
            assert labels.tolist() == [int(n) % 4 for n in order(5, 0, 40).at(np.array(positions))]
            assert pixels.is_contiguous(memory_format=torch.channels_last) or not channels_last


def test_evaluation_comes_in_stored_order_and_whole(images: Path) -> None:
    with Loader(images, 16, transform=eval_images(30, 24), shuffle=False, last="exact") as loader:
        labels = torch.cat([labels for _, labels in loader]).tolist()
        assert labels == [number % 4 for number in range(40)]
        assert len(loader) == 3


def test_epochs_go_on_by_themselves_in_new_orders(records: Path) -> None:
    with Loader(records, 10, seed=2) as loader:
        first, second = ([int(n) for batch in loader for n in batch["label"]] for _ in range(2))
        assert sorted(first) == sorted(second) == list(range(100))
        assert first == order(2, 0, 100).at(np.arange(100)).tolist()
        assert second == order(2, 1, 100).at(np.arange(100)).tolist()
        loader.set_epoch(0)
        assert [int(n) for batch in loader for n in batch["label"]] == first


def test_records_come_as_tensors_and_agree_with_each_other(records: Path) -> None:
    with Loader(records, 32, last="pad") as loader:
        batches = list(loader)
    assert [len(batch["label"]) for batch in batches] == [32] * 4
    for batch in batches:
        assert batch["x"].shape == (32, 2, 4) and batch["x"].dtype == torch.int32
        assert torch.equal(batch["x"][:, 1, 3].long(), batch["label"])
        assert torch.equal(batch["hard"], 100.0 - batch["label"])
    labels = torch.cat([batch["label"] for batch in batches]).tolist()
    assert labels[100:] == labels[:28] and sorted(labels[:100]) == list(range(100))


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("prefetch", [1, 4])
def test_threads_and_prefetching_change_nothing(images: Path, num_threads: int, prefetch: int) -> None:
    transform = train_images(16, ColorJitter(0.4, 0.4, 0.4, 0.1), MixUp(4))
    with Loader(images, 8, transform=transform) as loader:
        expected = list(loader)
    with Loader(images, 8, transform=transform, num_threads=num_threads, prefetch=prefetch) as loader:
        for (pixels, shares), (other_pixels, other_shares) in zip(loader, expected, strict=True):
            assert torch.equal(pixels, other_pixels) and torch.equal(shares, other_shares)
            assert shares.shape == (8, 4)


def test_images_do_not_depend_on_batch_size_or_world(images: Path) -> None:
    transform = train_images(16, ColorJitter(0.4))
    with Loader(images, 40, transform=transform) as loader:
        ((whole, _),) = list(loader)
    for rank in range(2):
        with Loader(images, 5, transform=transform, rank=rank, world_size=2) as loader:
            own = torch.cat([pixels for pixels, _ in loader])
        assert torch.equal(own, whole[rank::2])


def test_several_packs_are_shuffled_as_one(records: Path, tmp_path: Path) -> None:
    more = write_records(tmp_path / "more", 60, first=100)
    with Loader([records, more], 16, last="exact") as loader:
        labels = torch.cat([batch["label"] for batch in loader]).tolist()
    assert sorted(labels) == list(range(160))
    assert labels == order(0, 0, 160).at(np.arange(160)).tolist()


def test_weights_mix_packs(records: Path, tmp_path: Path) -> None:
    more = write_records(tmp_path / "more", 20, first=100)
    with Loader([records, more], 120, weights=[1, 3], last="exact") as loader:
        labels = np.concatenate([batch["label"].numpy() for epoch in range(32) for batch in loader])
    # 32 epochs of 120 samples are 15 blocks
    assert len(labels) == 15 * 256 and (labels >= 100).sum() == 15 * 256 * 3 // 4


def test_a_curriculum_begins_with_what_its_column_calls_easy(records: Path) -> None:
    with Loader(records, 100, curriculum="hard", pace=2) as loader:
        first, second, third = (next(iter(loader))["label"].tolist() for _ in range(3))
    assert first == list(range(99, -1, -1))
    assert set(second[:50]) == set(range(50, 100)) and second != first
    assert sorted(third) == list(range(100)) and set(third[:50]) != set(range(50, 100))


def test_block_shuffling_keeps_to_few_shards_at_a_time(records: Path) -> None:
    with Loader(records, 100, block_shards=2) as loader:
        labels = next(iter(loader))["label"].tolist()
        shards = loader.packs.shard_starts()
    assert sorted(labels) == list(range(100)) and len(shards) > 5
    size = max(np.diff(shards))
    assert len(set(np.searchsorted(shards, labels[:size], side="right"))) <= 2


def test_packs_that_differ_are_not_mixed(images: Path, records: Path) -> None:
    with pytest.raises(TopoutError, match="different fields"):
        Loader([images, records], 4)
    with pytest.raises(TopoutError, match="not clear which field"):
        Loader(records, 4, transform=train_images(8))


def test_labels_are_needed_to_mix(tmp_path: Path, images: Path) -> None:
    fields = [Field(name="image", kind="jpeg")]
    with open_pack(images) as pack, PackWriter(tmp_path / "bare", fields=fields) as writer:
        for number in range(4):
            writer.add(str(number), {"image": pack.sample(number)["image"]})
    with pytest.raises(TopoutError, match="need labels"):
        Loader(tmp_path / "bare", 4, transform=train_images(8, CutMix(4)))
    with Loader(tmp_path / "bare", 4, transform=train_images(8)) as loader:
        assert next(iter(loader))["image"].shape == (4, 3, 8, 8)


def test_images_come_as_bytes_without_a_transform(images: Path) -> None:
    with Loader(images, 4, shuffle=False) as loader:
        batch = next(iter(loader))
    assert batch["label"].tolist() == [0, 1, 2, 3]
    assert [data[:2] for data in batch["image"]] == [b"\xff\xd8"] * 4


def test_a_state_is_json_and_says_where_training_stands(records: Path) -> None:
    with Loader(records, 10, seed=4) as loader:
        iterator = iter(loader)
        next(iterator), next(iterator)
        state = json.loads(json.dumps(loader.state_dict()))
        assert (state["seed"], state["epoch"], state["position"]) == (4, 0, 20)
        del iterator
        # an epoch that was broken off is not gone on with by accident
        next(iter(loader))
        assert loader.state_dict()["epoch"] == loader.epoch == 1


def test_the_image_reader_is_pillow_itself(images: Path) -> None:
    with open_pack(images) as pack:
        data = pack.sample(0)["image"]
    import io

    assert np.array_equal(np.asarray(open_rgb(data, "")), np.asarray(Image.open(io.BytesIO(data))))
