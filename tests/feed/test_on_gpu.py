"""On a GPU: the same batches as on the host, pinned memory never overwritten too early, and torchvision's own results.

torchvision is there with a CUDA build of torch alone, so what is compared with it directly is compared here.
"""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import PIL
import pytest
import torch
from PIL import Image

from tests.feed.image_packs import damage, jpeg, photograph, write_images
from topout import Loader
from topout.epoch import randomness
from topout.feed import device_decode, feeding
from topout.feed.augment import ColorJitter, ImageTransform, MixUp, RandomRotate90, eval_images, train_images
from topout.feed.colours import adjust_brightness, adjust_contrast, adjust_hue, adjust_saturation
from topout.feed.crop import place
from topout.feed.decode import open_rgb, render
from topout.feed.pipeline import BatchPlan
from topout.packs.damage import DamagedSample
from topout.packs.fields import Field
from topout.packs.packing.writer import PackWriter

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("gpu") / "images", 120)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16"])
def test_batches_on_the_device_are_those_of_the_host(images: Path, dtype: str) -> None:
    more = [] if dtype == "uint8" else [MixUp(4)]
    transform = train_images(32, ColorJitter(0.4, 0.4, 0.4, 0.1), RandomRotate90(), *more)
    with Loader(images, 16, transform=transform, dtype=dtype) as loader:
        expected = [(pixels.clone(), labels.clone()) for pixels, labels in loader]
    with Loader(images, 16, transform=transform, dtype=dtype, device="cuda", decode="host") as loader:
        for (pixels, labels), (host_pixels, host_labels) in zip(loader, expected, strict=True):
            assert pixels.is_cuda and labels.is_cuda and pixels.dtype == host_pixels.dtype
            assert pixels.is_contiguous(memory_format=torch.channels_last)
            # a level of difference where the GPU fuses a multiplication and an addition
            level = 1.0 if dtype == "uint8" else 1 / 255 / 0.2
            assert (pixels.cpu().float() - host_pixels.float()).abs().mean() < 0.05 * level
            assert torch.allclose(labels.cpu().float(), host_labels.float(), atol=1e-6)


@pytest.mark.parametrize("transform", [train_images(48), eval_images(56, 48)], ids=["train", "eval"])
def test_decoding_on_the_device_gives_nearly_the_same_pixels(
    images: Path, transform: ImageTransform, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = []

    def decode_batch(plan: BatchPlan, *arguments: object) -> object:
        decoded.append(plan.number)
        return device_decode.decode_batch(plan, *arguments)

    monkeypatch.setattr(feeding, "device_decode", SimpleNamespace(decode_batch=decode_batch))
    with Loader(images, 24, transform=transform, dtype="uint8", decode="host") as loader:
        expected = [(pixels.clone(), labels.clone()) for pixels, labels in loader]
    with Loader(images, 24, transform=transform, dtype="uint8", device="cuda", decode="device") as loader:
        for (pixels, labels), (host_pixels, host_labels) in zip(loader, expected, strict=True):
            difference = (pixels.cpu().float() - host_pixels.float()).abs()
            print(f"device decode: mean {difference.mean():.3f}, largest {difference.max():.0f} levels")
            assert difference.mean() < 1.0
            assert torch.equal(labels.cpu(), host_labels)
    assert decoded == list(range(5))


def test_what_the_device_cannot_decode_goes_through_the_host(tmp_path: Path) -> None:
    fields = [Field(name="image", kind="bytes"), Field(name="label", kind="int")]
    import io

    with PackWriter(tmp_path / "pack", fields=fields) as writer:
        for number in range(8):
            out = io.BytesIO()
            image = Image.fromarray(photograph(number))
            (image.convert("CMYK") if number == 3 else image).save(out, "PNG" if number == 5 else "JPEG")
            writer.add(str(number), {"image": out.getvalue(), "label": number})
    options = {"transform": eval_images(40, 32), "shuffle": False, "dtype": "uint8"}
    with Loader(tmp_path / "pack", 8, decode="host", **options) as loader:
        ((expected, _),) = [(pixels.clone(), labels) for pixels, labels in loader]
    with Loader(tmp_path / "pack", 8, device="cuda", decode="device", **options) as loader:
        ((pixels, labels),) = list(loader)
    assert labels.tolist() == list(range(8))
    assert (pixels.cpu().float() - expected.float()).abs().mean(dim=(1, 2, 3)).max() < 1.5


def test_damage_is_raised_and_skipped_when_decoding_on_the_device(tmp_path: Path) -> None:
    path = write_images(tmp_path / "pack", 8)
    damage(path, 2)
    options = {"transform": train_images(16), "shuffle": False, "device": "cuda", "decode": "device"}
    with Loader(path, 4, **options) as loader:
        with pytest.raises(DamagedSample, match="Sample 2 "):
            list(loader)
    with Loader(path, 4, on_damage="skip", **options) as loader:
        assert [label for _, labels in loader for label in labels.tolist()] == [0, 1, 3, 3, 0, 1, 2, 3]


def test_pinned_memory_is_not_overwritten_while_a_queued_copy_reads_it(images: Path) -> None:
    transform = train_images(64)
    with Loader(images, 8, transform=transform, dtype="uint8", prefetch=1) as loader:
        expected = [pixels.clone() for pixels, _ in loader]
        loader.set_epoch(0)
        busy = torch.randn(6_000, 6_000, device="cuda")
        copies = []
        for pixels, _ in loader:
            assert pixels.is_pinned()
            for _ in range(20):
                busy = busy @ busy
                busy /= busy.norm()
            # queued behind a long computation, and the batch is dropped at once
            copies.append(pixels.to("cuda", non_blocking=True))
            del pixels
        torch.cuda.synchronize()
    assert all(torch.equal(copy.cpu(), pixels) for copy, pixels in zip(copies, expected, strict=True))


def test_batches_on_the_device_survive_being_kept(images: Path) -> None:
    with Loader(images, 8, transform=train_images(32), device="cuda", decode="host") as loader:
        kept = list(loader)
        loader.set_epoch(0)
        again = list(loader)
    assert len(kept) == 15
    assert all(torch.equal(a, b) and torch.equal(c, d) for (a, c), (b, d) in zip(kept, again, strict=True))


def test_the_choice_is_measured_and_changes_no_labels(tmp_path: Path) -> None:
    fields = [Field(name="image", kind="jpeg"), Field(name="label", kind="int")]
    with PackWriter(tmp_path / "pack", fields=fields) as writer:
        for number in range(256):
            writer.add(str(number), {"image": jpeg(photograph(number, 500, 375)), "label": number})
    with Loader(tmp_path / "pack", 64, transform=train_images(224), device="cuda", dtype="bfloat16") as loader:
        seen = [label for _ in range(40) for _, labels in loader for label in labels.tolist()]
        print("counters", loader.counters())
    assert all(sorted(seen[start : start + 256]) == list(range(256)) for start in range(0, len(seen), 256))


def test_colours_are_torchvisions() -> None:
    functional = pytest.importorskip("torchvision.transforms.v2.functional")
    batch = torch.stack([torch.from_numpy(photograph(n, 50, 40)).permute(2, 0, 1) for n in range(8)])
    noise = torch.randint(0, 256, (8, 3, 40, 50), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for images in (batch, noise):
        for own, theirs, factors, allowed in (
            (adjust_brightness, functional.adjust_brightness, (0.0, 0.6, 1.37), 0),
            (adjust_contrast, functional.adjust_contrast, (0.0, 0.6, 1.37), 1),
            (adjust_saturation, functional.adjust_saturation, (0.0, 0.6, 1.37), 1),
            (adjust_hue, functional.adjust_hue, (-0.5, -0.1, 0.23), 1),
        ):
            for factor in factors:
                got = own(images, torch.full((8, 1, 1, 1), factor, dtype=torch.float64))
                difference = (got.int() - theirs(images, factor).int()).abs()
                print(f"{own.__name__} {factor}: {int((difference > 0).sum())} of {difference.numel()} differ")
                assert difference.max() <= allowed
                assert (difference > 0).float().mean() < 0.002


def test_crops_and_resizes_are_torchvisions() -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    from torchvision.transforms.v2 import functional

    for number, (width, height) in enumerate([(500, 375), (375, 500), (97, 301), (224, 224), (30, 20)]):
        image = open_rgb(jpeg(photograph(number, width, height)), "")
        window = place(eval_images(256, 224), width, height, 0)
        theirs = v2.Compose([v2.Resize(256), v2.CenterCrop(224)])(image)
        assert_resized_alike(render(image, window, 224, 224), np.asarray(theirs))
        for position in range(20):
            window = place(train_images(64), width, height, randomness.key(0, 0, position))
            cut = functional.resized_crop(image, window.top, window.left, window.height, window.width, [64, 64])
            cut = functional.horizontal_flip(cut) if window.is_flipped else cut
            assert_resized_alike(render(image, window, 64, 64), np.asarray(cut))


def assert_resized_alike(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Byte for byte; Pillow chooses by shape from version 13 on whether it resizes down first, a grey level apart."""
    allowed = 0 if int(PIL.__version__.split(".")[0]) < 13 else 1
    assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= allowed


def test_crops_are_distributed_as_torchvisions() -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    from topout.feed.augment import RandomResizedCrop
    from topout.feed.crop import random_resized_crop

    torch.manual_seed(0)
    image = Image.new("RGB", (500, 375))
    maker = v2.RandomResizedCrop(224)
    params = [maker.make_params([image]) for _ in range(4_000)]
    theirs = np.array([(one["left"], one["top"], one["width"], one["height"]) for one in params])
    crop = RandomResizedCrop(224)
    own = np.array([random_resized_crop(crop, 500, 375, randomness.key(0, 0, n)) for n in range(4_000)])
    for column in range(4):
        parts = [np.sort(part[:, column]) for part in (own, theirs)]
        together = np.concatenate(parts)
        first, second = (np.searchsorted(part, together, side="right") / 4_000 for part in parts)
        # Kolmogorov and Smirnov's distance at 0.1 %
        assert np.abs(first - second).max() < 1.95 * math.sqrt(2 / 4_000)
