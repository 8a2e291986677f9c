"""A pack in a stock DataLoader: the same samples as from the files, with workers forked, spawned or none."""

import io
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from tests.conftest import REPOSITORY
from tests.feed.image_packs import damage, jpeg, photograph, write_images, write_records
from tests.feed.serve.packs import pack_folder
from topout import Loader, PackedDataset
from topout.feed.augment import Resize
from topout.feed.decode import UnreadableImage
from topout.packs.damage import DamagedSample
from topout.packs.fields import Field
from topout.packs.packing.writer import PackWriter


def as_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image.resize((8, 8)))).permute(2, 0, 1)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("dataset") / "pack", 20)


def test_samples_are_those_of_an_image_folder(images: Path) -> None:
    dataset = PackedDataset(images)
    assert len(dataset) == 20
    image, label = dataset[6]
    expected = Image.open(io.BytesIO(jpeg(photograph(6, 64 + 6 % 5 * 16, 60)))).convert("RGB")
    assert label == 2 and image.mode == "RGB" and np.array_equal(np.asarray(image), np.asarray(expected))
    assert dataset.classes == ["class-0", "class-1", "class-2", "class-3"]
    assert dataset.class_to_idx["class-2"] == 2
    assert dataset.targets == [number % 4 for number in range(20)]
    assert [label for _, label in dataset] == dataset.targets


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a folder of mixed formats becomes: images of no kind of their own, here one of each format."""
    folder = tmp_path_factory.mktemp("mixed")
    for number, ending in enumerate(("jpg", "png", "bmp", "webp")):
        file = folder / "source" / f"class-{number}" / f"one.{ending}"
        file.parent.mkdir(parents=True)
        Image.fromarray(np.full((5, 4, 3), 60 * number, dtype=np.uint8)).save(file)
    return pack_folder(folder / "source", folder / "pack")


def test_images_of_mixed_formats_are_images(mixed: Path) -> None:
    dataset = PackedDataset(mixed, transform=np.asarray)
    assert [field.kind for field in dataset.pack.fields] == ["bytes", "int"]
    assert [label for _, label in dataset] == [0, 1, 2, 3]
    for pixels, label in dataset:
        assert pixels.shape == (5, 4, 3) and abs(int(pixels[2, 2, 1]) - 60 * label) <= 2
    with Loader(mixed, 4, transform=Resize((5, 4)), shuffle=False, dtype="uint8") as loader:
        ((ours, _),) = list(loader)
    assert np.array_equal(ours.permute(0, 2, 3, 1).numpy(), np.stack([pixels for pixels, _ in dataset]))


def write_two_images(path: Path) -> Path:
    fields = [Field(name="scan", kind="bytes"), Field(name="photo", kind="jpeg"), Field(name="label", kind="int")]
    with PackWriter(path, fields=fields) as writer:
        writer.add("0", {"scan": jpeg(photograph(1)), "photo": jpeg(photograph(2)), "label": 7})
    return path


def test_other_bytes_are_an_image_where_that_is_said(tmp_path: Path) -> None:
    path = write_two_images(tmp_path / "pack")
    plain = PackedDataset(path)[0]
    assert plain["scan"] == jpeg(photograph(1)) and plain["photo"].size == (96, 72)
    said = PackedDataset(path, image="scan")[0]
    assert said["scan"].size == (96, 72) and said["photo"] == jpeg(photograph(2))


def test_an_image_that_cannot_be_decoded_is_named_with_a_command_that_mends_the_pack(tmp_path: Path) -> None:
    fields = [Field(name="image", kind="bytes"), Field(name="label", kind="int")]
    with PackWriter(tmp_path / "pack", fields=fields) as writer:
        for number in range(3):
            data = jpeg(photograph(number))
            writer.add(f"{number}.jpg", {"image": data[:200] if number == 1 else data, "label": number})
    with pytest.raises(UnreadableImage, match=r"'1\.jpg' cannot be decoded") as told:
        PackedDataset(tmp_path / "pack")[1]
    command = told.value.do.partition("images: ")[2]
    assert command == f"topout pack {tmp_path / 'pack'} NEW --check-images --on-error skip"
    words = command.replace("NEW", str(tmp_path / "new")).split()
    done = subprocess.run([sys.executable, "-m", *words], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert PackedDataset(tmp_path / "new").targets == [0, 2]


def test_transforms_get_the_image_and_the_label(images: Path) -> None:
    dataset = PackedDataset(images, as_tensor, lambda label: -label)
    pixels, label = dataset[3]
    assert pixels.shape == (3, 8, 8) and label == -3


@pytest.mark.parametrize(("num_workers", "context"), [(0, None), (2, "fork"), (1, "spawn")])
def test_a_stock_loader_gives_every_sample_once(images: Path, num_workers: int, context: str | None) -> None:
    dataset = PackedDataset(images, as_tensor)
    plain = torch.stack([dataset[number][0] for number in range(20)])
    loader = DataLoader(dataset, batch_size=6, num_workers=num_workers, multiprocessing_context=context)
    batches = list(loader)
    assert torch.equal(torch.cat([pixels for pixels, _ in batches]), plain)
    assert torch.cat([labels for _, labels in batches]).tolist() == dataset.targets


@pytest.mark.parametrize(
    ("num_workers", "context", "world_size"), [(0, None, 2), (2, "fork", 2), (0, None, 1), (1, "spawn", 1)]
)
def test_the_iterable_face_shares_samples_out(
    tmp_path: Path, num_workers: int, context: str | None, world_size: int
) -> None:
    dataset = PackedDataset(write_records(tmp_path / "pack", 50))
    seen = []
    for rank in range(world_size):
        stream = dataset.stream(seed=3, rank=rank, world_size=world_size)
        loader = DataLoader(stream, batch_size=7, num_workers=num_workers, multiprocessing_context=context)
        seen.extend(label for batch in loader for label in batch["label"].tolist())
    assert sorted(seen) == list(range(50)) and seen != sorted(seen)


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_the_iterable_face_changes_its_order_with_the_epoch(tmp_path: Path, context: str) -> None:
    stream = PackedDataset(write_records(tmp_path / "pack", 50)).stream()
    loader = DataLoader(stream, batch_size=50, num_workers=1, persistent_workers=True, multiprocessing_context=context)
    (first,) = [batch["label"].tolist() for batch in loader]
    stream.set_epoch(1)
    (second,) = [batch["label"].tolist() for batch in loader]
    assert sorted(first) == sorted(second) and first != second
    plain = [sample["label"] for sample in PackedDataset(tmp_path / "pack").stream(shuffle=False)]
    assert plain == list(range(50))


def test_a_copy_of_the_iterable_face_has_an_epoch_of_its_own(tmp_path: Path) -> None:
    stream = PackedDataset(write_records(tmp_path / "pack", 50)).stream(epoch=1)
    copy = pickle.loads(pickle.dumps(stream))
    first = [sample["label"] for sample in stream]
    stream.set_epoch(2)
    assert [sample["label"] for sample in copy] == first != [sample["label"] for sample in stream]


def test_damage_is_named_in_the_script_also_from_a_worker(tmp_path: Path) -> None:
    path = write_images(tmp_path / "pack", 8)
    damage(path, 5)
    dataset = PackedDataset(path, as_tensor)
    with pytest.raises(DamagedSample, match=r"class-1/0005\.jpg"):
        dataset[5]
    with pytest.raises(Exception, match=r"class-1/0005\.jpg"):
        list(DataLoader(dataset, batch_size=4, num_workers=1))
