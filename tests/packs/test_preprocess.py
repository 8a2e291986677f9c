"""Preprocessing when packing: images of the asked size, whole tiles, bands at one size; and nothing touched unasked."""

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageOps

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


def test_what_pillow_would_hand_to_another_program_is_no_image():
    """EPS is run by Ghostscript; bytes called `image` may be of any format."""
    target = io.BytesIO()
    Image.new("RGB", (4, 4)).save(target, "EPS")
    preprocessor = Preprocessor([Field(name="image", kind="bytes")], PackOptions(check_images=True))
    with pytest.raises(ValueError, match="cannot identify image file"):
        preprocessor.apply("a", {"image": target.getvalue()})


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


def written(image, kind, **options):
    """`image` packed as a field of `kind`, opened again."""
    target = io.BytesIO()
    image.save(target, "TIFF" if image.mode in ("CMYK", "LAB", "F", "YCbCr") else "PNG")
    preprocessor = Preprocessor([Field(name="image", kind=kind)], PackOptions(**options))
    [(_, sample)] = preprocessor.apply("a", {"image": target.getvalue()})
    return opened(sample["image"])


@pytest.mark.parametrize("options", [{"resize": 30}, {"max_side": 40}, {"quality": 95}, {"tile": 100}])
def test_16_bit_images_keep_their_upper_bits_as_jpeg_and_all_as_png(options):
    levels = np.full((60, 80), 0x4321, np.uint16)
    as_jpeg = written(Image.fromarray(levels), "jpeg", **options)
    assert (as_jpeg.mode, set(np.unique(as_jpeg).tolist())) == ("L", {0x43})
    as_png = written(Image.fromarray(levels), "png", **options)
    assert (as_png.mode, set(np.unique(as_png).tolist())) == ("I;16", {0x4321})


@pytest.mark.parametrize(("mode", "becomes"), [("P", "RGB"), ("1", "L"), ("transparent", "RGBA")])
def test_palettes_and_black_and_white_are_resampled_as_levels(mode, becomes):
    stripes = Image.fromarray((np.indices((60, 80)).sum(0) % 2 * 255).astype(np.uint8))
    image = stripes.convert("RGB").convert("1" if mode == "1" else "P")
    if mode == "transparent":
        image.info["transparency"] = 7
    small = written(image, "png", resize=30)
    assert small.mode == becomes
    # a chequerboard of single pixels is grey from afar, and black or white where the nearest is taken
    middle = np.asarray(small.convert("L"))[5:-5, 5:-5]
    assert 100 < middle.min() and middle.max() < 155


def test_a_palette_that_is_only_cut_stays_one():
    assert written(Image.new("P", (60, 60), 3), "png", tile=60).mode == "P"


@pytest.mark.parametrize("mode", ["CMYK", "F", "LAB", "YCbCr"])
def test_what_png_cannot_hold_becomes_rgb(monkeypatch, mode):
    monkeypatch.setattr("topout.packs.packing.preprocess.read_image_header", lambda data: None)
    assert written(Image.new(mode, (60, 60)), "png", resize=30).mode == "RGB"


def test_an_image_that_cannot_be_encoded_is_the_entrys_fault(tmp_path):
    (tmp_path / "images" / "cat").mkdir(parents=True)
    # JPEG ends at 65,500 pixels
    Image.new("L", (70_000, 1)).save(tmp_path / "images" / "cat" / "long.jpg", "PNG")
    (tmp_path / "images" / "cat" / "short.jpg").write_bytes(jpeg(0))
    with pytest.raises(TopoutError, match=r"'cat/long\.jpg'") as caught:
        pack_folder(tmp_path / "images", tmp_path / "stopped", quality=90)
    assert "cannot be written as JPEG" in caught.value.why
    assert pack_folder(tmp_path / "images", tmp_path / "pack", quality=90, on_error="skip").manifest.num_samples == 1


def turned_exif(*others):
    """EXIF of orientation 6 beside other tags, each (tag, type, value) of one number."""
    entries = [(0x0112, 3, 6 << 16), *others]
    table = b"".join(struct.pack(">HHII", tag, kind, 1, value) for tag, kind, value in sorted(entries))
    return b"Exif\0\0MM\0*" + struct.pack(">IH", 8, len(entries)) + table + bytes(4)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("exif", "size"),
    [
        (turned_exif(), (120, 160)),
        # a width of kind byte, a resolution that is text, a compression too large for its kind
        (turned_exif((0x0100, 1, 0)), (120, 160)),
        (turned_exif((0x011A, 2, 0)), (120, 160)),
        (turned_exif((0x0103, 4, 1 << 20)), (120, 160)),
        # the table lies past the end; no table at all
        (b"Exif\0\0MM\0*\xff\xff\xff\xff", (160, 120)),
        (b"Exif\0\0nonsense", (160, 120)),
    ],
)
def test_odd_exif_costs_no_image(exif, size):
    [(_, image)] = applied(jpeg(0, (320, 240), exif=exif), resize=120)
    assert image.size == size


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_turned_as_pillow_does(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = jpeg(0, (48, 32), exif=exif.tobytes())
    target = io.BytesIO()
    ImageOps.exif_transpose(opened(data)).save(target, "JPEG", quality=90)
    [(_, image)] = applied(data, quality=90)
    assert np.array_equal(np.asarray(image), np.asarray(opened(target.getvalue())))
