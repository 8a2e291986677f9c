"""A mistake in an option is said at once, in three parts, whatever the mistake is."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.feed.image_packs import write_images
from topout import Loader, PackedDataset
from topout.feed.augment import (
    CenterCrop,
    ColorJitter,
    CutMix,
    MixUp,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    eval_images,
    train_images,
)
from topout.feed.staging.stager import StagingOptions
from topout.packs.fields import Field
from topout.packs.pack import open_pack
from topout.packs.packing.writer import PackWriter
from topout.schema.errors import ExitCode, TopoutError

HALF = (0.5, 0.5, 0.5)

MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"packs": None}, "None is no pack"),
    ({"packs": [3]}, "3 is no pack"),
    ({"batch_size": "x"}, "batch_size='x' is no whole number"),
    ({"batch_size": 2.5}, "batch_size=2.5 is no whole number"),
    ({"batch_size": 0}, "batch_size=0 is too small"),
    ({"seed": "x"}, "seed='x' is no whole number"),
    ({"seed": None}, "seed=None is no whole number"),
    ({"rank": "0", "world_size": 1}, "rank='0' is no whole number"),
    ({"rank": 0, "world_size": 0}, "world_size=0 is too small"),
    ({"rank": 2, "world_size": 2}, "Rank 2 of 2 does not exist"),
    ({"last": "keep"}, "no policy 'keep'"),
    ({"dtype": "float64"}, "dtype='float64'"),
    ({"dtype": torch.float32}, r"dtype=torch\.float32"),
    ({"on_damage": "ignore"}, "on_damage='ignore'"),
    ({"decode": "gpu"}, "decode='gpu'"),
    ({"decode": "device"}, "no device to decode on"),
    ({"decode": "device", "device": "cpu"}, "no device to decode on"),
    ({"device": "bogus"}, "device='bogus' is no device"),
    ({"device": 2.5}, r"device=2\.5 is no device"),
    ({"device": "meta"}, "through CUDA alone"),
    ({"device": "cuda:99"}, "cannot be brought to device='cuda:99'"),
    ({"prefetch": 0}, "prefetch=0"),
    ({"prefetch": 1.5}, "prefetch=1.5 is no whole number"),
    ({"num_threads": 0}, "num_threads=0"),
    ({"num_threads": 1.5}, "num_threads=1.5 is no whole number"),
    ({"block_shards": 0}, "block_shards=0 is too small"),
    ({"block_shards": -1}, "block_shards=-1 is too small"),
    ({"stage": "x"}, "stage='x' is not known"),
    ({"weights": [1], "curriculum": "label"}, "weights and curriculum"),
    ({"weights": [1], "shuffle": False}, "weights and shuffle=False contradict"),
    ({"curriculum": "label", "shuffle": False}, "curriculum and shuffle=False contradict"),
    ({"curriculum": "image"}, "'image' is no column"),
    ({"curriculum": "label", "pace": 0.5}, "pace 0.5"),
    ({"curriculum": "label", "pace": "x"}, "pace 'x'"),
    ({"weights": "x"}, "cannot mix 1 packs: 'x'"),
    ({"weights": 0.5}, "cannot mix 1 packs: 0.5"),
    ({"batch_size": 41}, "40 samples do not fill a batch of 41"),
    ({"batch_size": 5, "world_size": 16, "rank": 0}, "40 samples do not fill a batch of 5 on 16"),
    ({"image": "label"}, "'label' is no field of images"),
    ({"image": "label", "transform": None}, "'label' is no field of images"),
    ({"transform": lambda x: x}, "function is no step.*PackedDataset"),
    ({"transform": ["crop"]}, "str is no step"),
    ({"transform": Resize(32)}, "different sizes: Resize"),
    ({"transform": [Resize("a"), CenterCrop(8)]}, r"Resize\(size='a'\) cannot be done"),
    ({"transform": [Resize(32.5), CenterCrop(8)]}, r"Resize\(size=32\.5\) cannot be done"),
    ({"transform": Resize((8, 8, 3))}, "a whole number above 0, or .height, width"),
    ({"transform": RandomResizedCrop(32, 0.5)}, "Scale and ratio are .lowest, highest"),
    ({"transform": RandomResizedCrop(32, scale=(0.0, 1.0))}, "Scale and ratio are .lowest, highest"),
    ({"transform": RandomCrop(32, padding=-1)}, "Padding is a whole number"),
    ({"transform": RandomCrop(32, fill=256)}, "a level from 0 to 255"),
    ({"transform": [CenterCrop(8), RandomHorizontalFlip("x")]}, "p is a share"),
    ({"transform": [CenterCrop(8), ColorJitter("a")]}, "cannot vary by 'a'"),
    ({"transform": [CenterCrop(8), ColorJitter((0.1, 0.2, 0.3))]}, "cannot vary by"),
    ({"transform": [CenterCrop(8), Normalize(HALF, (0, 0, 0))]}, "no std is 0"),
    ({"transform": [CenterCrop(8), Normalize((0.5,), (0.2,))]}, "three numbers each"),
    ({"transform": [CenterCrop(8), Normalize(0.5, 0.2)]}, "three numbers each"),
    ({"transform": [CenterCrop(8), MixUp(4, -1)]}, r"MixUp\(num_classes=4, alpha=-1\) cannot be done"),
    ({"transform": [CenterCrop(8), CutMix(4, 0)]}, r"CutMix\(num_classes=4, alpha=0\) cannot be done"),
    ({"transform": [CenterCrop(8), MixUp(0)]}, "whole number above 0, alpha"),
    ({"transform": [CenterCrop(8), MixUp(2)]}, "for labels from 0 to 1.\n.*go from 0 to 3"),
    ({"transform": [CenterCrop(8), MixUp(4)], "dtype": "uint8"}, "MixUp cannot blend"),
]


@pytest.mark.parametrize(("options", "says"), MISTAKES)
def test_a_mistake_is_said_in_three_parts_when_the_loader_is_made(
    images: Path, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(TopoutError, match=f"(?s){says}") as told:
        Loader(**{"packs": images, "batch_size": 4, "transform": train_images(8), **options})
    assert told.value.why and told.value.do


def test_a_gpu_that_is_not_there_is_the_machines_affair(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(TopoutError, match=r"device='cuda'.*\n.*shows 0 GPU") as told:
        Loader(images, 4, device="cuda")
    assert told.value.exit_code == ExitCode.ENVIRONMENT


@pytest.mark.parametrize("device", [None, "cpu", "cpu:0", torch.device("cpu")])
def test_the_host_may_be_said_in_any_way(images: Path, device: Any) -> None:
    with Loader(images, 4, transform=eval_images(8, 8), device=device) as loader:
        assert next(iter(loader))[0].device.type == "cpu"


def test_one_step_needs_no_list(images: Path) -> None:
    with Loader(images, 4, transform=Resize((6, 9))) as loader:
        assert next(iter(loader))[0].shape == (4, 3, 6, 9)


def test_numbers_of_numpy_are_numbers(images: Path) -> None:
    with Loader(images, np.int64(4), seed=np.int32(3), prefetch=np.uint8(2)) as loader:
        next(iter(loader))
        assert {name: type(loader.state_dict()[name]) for name in ("seed", "position")} == {
            "seed": int,
            "position": int,
        }


@pytest.mark.parametrize(("labels", "says"), [([0, 1, 5, 2], "from 0 to 5"), ([0, -1, 1, 1], "from -1 to 1")])
def test_labels_without_names_of_classes_are_looked_through(tmp_path: Path, labels: list[int], says: str) -> None:
    fields = [Field(name="image", kind="jpeg"), Field(name="label", kind="int")]
    with open_pack(write_images(tmp_path / "named", 4)) as named, PackWriter(tmp_path / "p", fields=fields) as writer:
        for number, label in enumerate(labels):
            writer.add(str(number), {"image": named.sample(number)["image"], "label": label})
    with pytest.raises(TopoutError, match=says):
        Loader(tmp_path / "p", 2, transform=[CenterCrop(8), CutMix(5)])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"budget_bytes": -5}, "budget_bytes=-5 is too small"),
        ({"budget_bytes": 1e9}, "budget_bytes=1000000000.0 is no whole number"),
        ({"num_streams": 0}, "num_streams=0 is too small"),
        ({"window_share": "x"}, "A window of 'x'"),
        ({"unit": "pages"}, "no staging by 'pages'"),
    ],
)
def test_a_mistake_in_the_staging_is_said_when_its_options_are_made(options: dict[str, Any], says: str) -> None:
    with pytest.raises(TopoutError, match=says):
        StagingOptions(**options)


@pytest.mark.parametrize("state", [None, [], "epoch 3"])
def test_what_is_no_state_is_refused(images: Path, state: Any) -> None:
    with Loader(images, 4) as loader:
        with pytest.raises(TopoutError, match="is no loader's state"):
            loader.load_state_dict(state)


@pytest.mark.parametrize("data", [None, 5, "pack"])
def test_a_state_whose_data_is_no_list_is_refused(images: Path, data: Any) -> None:
    with Loader(images, 4) as loader:
        with pytest.raises(TopoutError, match="has no usable data"):
            loader.load_state_dict({**loader.state_dict(), "data": data})


@pytest.mark.parametrize(
    ("epoch", "says"),
    [
        (-1, "epoch=-1 is too small"),
        (1.5, r"epoch=1\.5 is no whole"),
        ("2", "'2' is no whole"),
        (None, "None is no whole"),
    ],
)
def test_an_epoch_that_is_none_is_refused(images: Path, epoch: Any, says: str) -> None:
    with Loader(images, 4) as loader:
        with pytest.raises(TopoutError, match=says):
            loader.set_epoch(epoch)
        loader.set_epoch(np.int64(3))
        assert loader.state_dict()["epoch"] == 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"on_damage": "whatever"}, "no policy 'whatever'"),
        ({"on_damage": "skip"}, "cannot skip damaged samples"),
        ({"path": None}, "None is no pack"),
        ({"path": "http://host/x"}, r"address http://host/x\.\n(?s:.*)topout\.Loader takes addresses"),
        ({"image": "label"}, "'label' is no field of images"),
    ],
)
def test_a_mistake_is_said_when_the_data_set_is_made(images: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(TopoutError, match=says):
        PackedDataset(**{"path": images, **options})
