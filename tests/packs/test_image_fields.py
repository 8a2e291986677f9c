"""Samples with several images, made smaller when they are packed: all of them are, and values of masks stay values."""

import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from tests.packs.packs import contents, jpeg, pack_folder
from topout.packs.check import check_pack
from topout.packs.fields import Field
from topout.packs.manifest import read_manifest
from topout.packs.pack import open_pack
from topout.packs.packing import preprocess
from topout.packs.packing.options import PackOptions
from topout.packs.packing.preprocess import Preprocessor
from topout.packs.repair import repair_files
from topout.packs.source_comparison import compare_with_source

CLASSES = np.array([0, 7, 255], np.uint8)


def png(image):
    target = io.BytesIO()
    image.save(target, "PNG")
    return target.getvalue()


def mask(mode="L", size=(80, 60)):
    """Of three values in single pixels, so that any mean of neighbours is a value that it does not have."""
    image = Image.fromarray(CLASSES[np.indices((size[1], size[0])).sum(0) % 3])
    if mode == "P":
        image.putpalette([level for index in range(256) for level in (index, 255 - index, index // 2)])
    return png(Image.fromarray(np.asarray(image).astype(np.uint16) * 256) if mode == "I;16" else image)


def stereo(path, num_samples=3):
    """WebDataset: two views and a mask."""
    with tarfile.open(path, "w") as archive:
        for number in range(num_samples):
            members = {"left.jpg": jpeg(number, (80, 60)), "right.jpg": jpeg(9 + number, (80, 60)), "seg.png": mask()}
            for extension, data in members.items():
                info = tarfile.TarInfo(f"{number:03d}.{extension}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return path


def opened(sample):
    return {name: Image.open(io.BytesIO(data)) for name, data in sample.items()}


def damage(path):
    shard = path / "shard-00000.bin"
    data = bytearray(shard.read_bytes())
    data[4096 + 50] ^= 1
    shard.write_bytes(data)


@pytest.mark.parametrize(("options", "size"), [({"resize": 24}, (32, 24)), ({"max_side": 40}, (40, 30))])
def test_every_image_of_a_sample_is_made_smaller(tmp_path, options, size):
    report = pack_folder(stereo(tmp_path / "a.tar"), tmp_path / "pack", **options)
    assert report.manifest.options == {**options, "images": ["left", "right", "seg"]}
    with open_pack(tmp_path / "pack") as pack:
        for number in range(3):
            assert {name: image.size for name, image in opened(pack.sample(number)).items()} == {
                "left": size, "right": size, "seg": size,
            }  # fmt: skip


def test_every_jpeg_of_a_sample_gets_the_quality(tmp_path):
    source = stereo(tmp_path / "a.tar", 1)
    pack_folder(source, tmp_path / "pack", quality=20)
    with open_pack(tmp_path / "pack") as pack:
        sample = pack.sample(0)
    assert len(sample["left"]) < 0.7 * len(jpeg(0, (80, 60)))
    assert len(sample["right"]) < 0.7 * len(jpeg(9, (80, 60)))
    assert np.array_equal(np.asarray(opened(sample)["seg"]), np.asarray(Image.open(io.BytesIO(mask()))))


@pytest.mark.parametrize("mode", ["L", "P", "I;16"])
def test_a_mask_beside_an_image_gets_no_value_it_did_not_have(mode):
    fields = [Field(name="image", kind="jpeg"), Field(name="seg", kind="png")]
    sample = {"image": jpeg(0, (80, 60)), "seg": mask(mode)}
    [(_, made)] = Preprocessor(fields, PackOptions(resize=25)).apply("a", sample)
    small = opened(made)["seg"]
    assert (small.mode, small.size) == (mode, (33, 25))
    scale = 256 if mode == "I;16" else 1
    assert set(np.unique(np.asarray(small)).tolist()) == {int(value) * scale for value in CLASSES}
    assert mode != "P" or small.getpalette()[21:24] == [7, 248, 3]


def test_an_image_alone_is_smoothed_also_where_it_is_grey():
    [(_, made)] = Preprocessor([Field(name="image", kind="png")], PackOptions(resize=25)).apply("a", {"image": mask()})
    assert len(np.unique(np.asarray(opened(made)["image"]))) > len(CLASSES)


@pytest.mark.parametrize("options", [{"resize": 24}, {"quality": 50}, {"tile": 16}])
def test_packs_of_one_image_and_unchanged_ones_are_recorded_as_ever(options):
    label = Field(name="label", kind="int")
    assert Preprocessor([Field(name="a", kind="jpeg"), label], PackOptions(**options)).changes == options
    assert Preprocessor([Field(name="a", kind="jpeg"), Field(name="b", kind="png")], PackOptions()).changes == {}


def test_several_changed_images_are_repaired_and_compared_by_the_same_rules(tmp_path):
    source = stereo(tmp_path / "a.tar")
    pack_folder(source, tmp_path / "pack", resize=24)
    before = contents(tmp_path / "pack")
    damage(tmp_path / "pack")
    repair_files(tmp_path / "pack", read_manifest(tmp_path / "pack"), {"shard-00000.bin"}, None)
    assert contents(tmp_path / "pack") == before
    assert compare_with_source(tmp_path / "pack", source).differences == ()


def test_a_pack_in_which_only_the_first_image_was_changed_can_still_be_repaired(tmp_path, monkeypatch):
    source = stereo(tmp_path / "a.tar")
    with monkeypatch.context() as patch:
        # as such packs were made: the first image changed, and no word about it
        def as_before(self, fields, options):
            preprocess_init(self, fields, options)
            self._changing = self._images[:1]
            self.changes.pop("images", None)

        preprocess_init = preprocess.Preprocessor.__init__
        patch.setattr(preprocess.Preprocessor, "__init__", as_before)
        pack_folder(source, tmp_path / "pack", resize=24)
    before = contents(tmp_path / "pack")
    with open_pack(tmp_path / "pack") as pack:
        assert pack.manifest.options == {"resize": 24}
        assert {name: image.size for name, image in opened(pack.sample(0)).items()} == {
            "left": (32, 24), "right": (80, 60), "seg": (80, 60),
        }  # fmt: skip
    damage(tmp_path / "pack")
    repair_files(tmp_path / "pack", read_manifest(tmp_path / "pack"), {"shard-00000.bin"}, None)
    assert contents(tmp_path / "pack") == before
    assert check_pack(tmp_path / "pack").damages == ()
    assert compare_with_source(tmp_path / "pack", source).differences == ()
