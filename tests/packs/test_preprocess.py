"""Preprocessing when packing: images of the asked size, whole tiles, bands at one size; and nothing touched unasked."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.packs.packs import image_folder, jpeg, pack_folder
from topout.packs.check import check_pack
from topout.packs.fields import Field
from topout.packs.pack import open_pack
from topout.packs.packing.bands import band_fields, resized, stack_bands, tile_corners
from topout.packs.packing.options import PackOptions
from topout.packs.packing.preprocess import Preprocessor
from topout.packs.repair import repair_files
from topout.schema.errors import TopoutError


def opened(data):
    return Image.open(io.BytesIO(data))


def applied(data, **options):
    preprocessor = Preprocessor([Field(name="image", kind="jpeg")], PackOptions(**options))
    return [(name, opened(sample["image"])) for name, sample in preprocessor.apply("a.jpg", {"image": data})]


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"resize": 64}, (85, 64)),
        ({"max_side": 64}, (64, 48)),
        ({"resize": 500}, (320, 240)),
        ({"max_side": 500}, (320, 240)),
        ({"quality": 30}, (320, 240)),
    ],
)
def test_larger_images_become_the_asked_size_and_smaller_ones_stay(options, size):
    [(name, image)] = applied(jpeg(0, (320, 240)), **options)
    assert (name, image.size, image.format) == ("a.jpg", size, "JPEG")


def test_a_lower_quality_is_smaller():
    data = jpeg(0, (320, 240))
    preprocessor = Preprocessor([Field(name="image", kind="jpeg")], PackOptions(quality=30))
    [(_, sample)] = preprocessor.apply("a", {"image": data})
    assert len(sample["image"]) < 0.7 * len(data)


def test_turned_images_are_written_upright():
    exif = Image.Exif()
    exif[0x0112] = 6
    [(_, image)] = applied(jpeg(0, (320, 240), exif=exif.tobytes()), resize=120)
    assert image.size == (120, 160)
    assert image.getexif().get(0x0112, 1) == 1


def test_cmyk_becomes_rgb():
    target = io.BytesIO()
    Image.new("CMYK", (100, 80), (0, 255, 255, 0)).save(target, "JPEG")
    [(_, image)] = applied(target.getvalue(), resize=40)
    assert (image.mode, image.size) == ("RGB", (50, 40))


def test_without_an_option_not_a_byte_changes():
    data = jpeg(3)
    preprocessor = Preprocessor([Field(name="image", kind="jpeg")], PackOptions())
    assert preprocessor.apply("a", {"image": data}) == [("a", {"image": data})]


def test_tiles_cover_the_image_and_each_is_whole():
    assert list(tile_corners((100, 250), 100)) == [(0, 0), (0, 100), (0, 150)]
    assert list(tile_corners((100, 200), 100)) == [(0, 0), (0, 100)]
    assert list(tile_corners((50, 60), 100)) == [(0, 0)]
    tiles = applied(jpeg(0, (250, 130)), tile=100)
    assert [name for name, _ in tiles] == [f"a.jpg:{top},{left}" for top in (0, 30) for left in (0, 100, 150)]
    assert {image.size for _, image in tiles} == {(100, 100)}


def test_a_pack_of_tiles_is_numbered_through_and_can_be_repaired(tmp_path):
    source = tmp_path / "images"
    for name in ("cat", "dog"):
        (source / name).mkdir(parents=True)
        for number in range(4):
            (source / name / f"{number}.jpg").write_bytes(jpeg(number, (60, 40)))
    pack_folder(source, tmp_path / "pack", tile=32, shard_bytes=4000)
    assert check_pack(tmp_path / "pack").damages == ()
    with open_pack(tmp_path / "pack") as pack:
        assert len(pack) == 8 * 4
        assert len(pack.shards) > 2
        assert pack.name(5) == "cat/1.jpg:0,28"
        assert pack.column("label").tolist() == [0] * 16 + [1] * 16
        whole, row = pack.sample(17), pack.index[17].copy()
        shard, manifest = pack.shards[int(row["shard"])].path, pack.manifest
    data = bytearray(shard.read_bytes())
    data[int(row["offset"]) + 30] ^= 1
    shard.write_bytes(data)
    with open_pack(tmp_path / "pack", on_damage="repair") as pack:
        assert pack.sample(17) == whole
        assert [damaged.number for damaged in pack.damage] == [17]
    repair_files(tmp_path / "pack", manifest, {shard.name}, None)
    assert check_pack(tmp_path / "pack").damages == ()


def test_whole_images_are_decoded_when_asked(tmp_path):
    source = image_folder(tmp_path / "images")
    (source / "cat" / "cut.jpg").write_bytes(jpeg(5, (200, 200))[:2000])
    assert pack_folder(source, tmp_path / "headers").manifest.num_samples == 11
    with pytest.raises(TopoutError, match=r"'cat/cut\.jpg'") as caught:
        pack_folder(source, tmp_path / "whole", check_images=True)
    assert "does not decode" in caught.value.why


def test_bands_are_brought_to_one_size_and_stacked():
    sample = {
        "ten": np.arange(16, dtype="<u2").reshape(4, 4),
        "twenty": np.array([[0, 100], [200, 300]], "<u2"),
        "sixty": np.full((2, 1, 1), 7, "<u2"),
        "label": 3,
    }
    found = stack_bands(sample, ["ten", "twenty", "sixty"], (4, 4))
    assert found["label"] == 3
    assert found["bands"].shape == (4, 4, 4)
    assert found["bands"].dtype == np.dtype("<u2")
    assert np.array_equal(found["bands"][0], sample["ten"])
    assert found["bands"][1].tolist()[0] == [0, 25, 75, 100]
    assert found["bands"][1].tolist()[3] == [200, 225, 275, 300]
    assert set(found["bands"][2:].ravel().tolist()) == {7}


def test_resizing_bands_agrees_with_pillow():
    band = np.random.default_rng(0).normal(size=(60, 60)).astype(np.float32)
    ours = resized(band[np.newaxis], (120, 120))[0]
    theirs = np.asarray(Image.fromarray(band).resize((120, 120), Image.Resampling.BILINEAR))
    assert np.abs(ours - theirs).max() < 1e-5


def test_the_shape_of_the_bands_is_known_when_that_of_the_arrays_is():
    arrays = [
        Field(name="a", kind="array", shape=(120, 120), dtype="<u2"),
        Field(name="b", kind="array", shape=(6, 60, 60), dtype="<u2"),
    ]
    [bands] = band_fields(arrays, (120, 120))
    assert (bands.shape, bands.dtype, bands.is_fixed) == ((7, 120, 120), "<u2", True)
    [bands, _] = band_fields([Field(name="a", kind="array", dtype="<u2"), Field(name="y", kind="int")], (120, 120))
    assert (bands.shape, bands.is_fixed) == (None, False)


def test_arrays_are_tiled():
    field = Field(name="x", kind="array", shape=(3, 70, 64), dtype="|u1")
    preprocessor = Preprocessor([field], PackOptions(tile=32))
    assert preprocessor.fields[0].shape == (3, 32, 32)
    array = np.random.default_rng(0).integers(0, 255, (3, 70, 64), dtype=np.uint8)
    tiles = preprocessor.apply("s", {"x": array})
    assert [name for name, _ in tiles] == [f"s:{top},{left}" for top in (0, 32, 38) for left in (0, 32)]
    assert np.array_equal(tiles[-1][1]["x"], array[:, 38:70, 32:64])


@pytest.mark.parametrize(
    ("fields", "options", "problem"),
    [
        ([Field(name="data", kind="bytes")], {"resize": 10}, "no images to change"),
        ([Field(name="data", kind="bytes")], {"upsample_bands": (2, 2)}, "no bands"),
        ([Field(name="a", kind="jpeg"), Field(name="b", kind="jpeg")], {"tile": 8}, "cuts one field"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_read(fields, options, problem):
    with pytest.raises(TopoutError, match=problem):
        Preprocessor(fields, PackOptions(**options))
