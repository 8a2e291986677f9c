"""What is done to samples once, when they are packed, instead of in every epoch: resize, encode anew, tile, stack.

Without such an option images stay as they are, byte by byte. With one they are decoded, turned upright as EXIF says,
and written again, which for JPEG loses a little; 16-bit images keep all bits as PNG, the upper 8 as JPEG. Where samples
have several images, PNGs of one channel are made smaller without new values. Not for random augmentation: that differs
from epoch to epoch.
"""

import io
from collections.abc import Iterator, Sequence
from typing import Any

from topout.packs.deep_image import is_deep, upper_bits
from topout.packs.fields import Field, Sample
from topout.packs.image_bytes import open_image
from topout.packs.image_header import read_image_header
from topout.packs.packing.bands import band_fields, stack_bands, tile_corners, tiled_field
from topout.packs.packing.options import DEFAULT_QUALITY, PackOptions
from topout.schema.errors import ExitCode, TopoutError

_JPEG_MODES = ("L", "RGB")
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I;16B")
_NEAR_MODES = {"PA": "RGBA", "I": "I;16"}
"""What PNG holds instead of these; of others RGB."""
_ONE_CHANNEL_MODES = ("1", "L", "P", "I", "I;16", "I;16B")
_ORIENTATION = 0x0112
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""What turns an image of that EXIF orientation upright, by Pillow's names."""


class Preprocessor:
    """`fields` are those of the samples that `apply` gives, `changes` what the manifest says of it."""

    def __init__(self, fields: Sequence[Field], options: PackOptions) -> None:
        self._options = options
        self._images = [
            field for field in fields if field.is_image or (field.name == "image" and field.kind == "bytes")
        ]
        wanted = options.images
        self._changing = [field for field in self._images if wanted is None or field.name in wanted]
        self._arrays = [field for field in fields if field.kind == "array"]
        self._check()
        self.changes = options.changes
        if options.changes_images and len(self._images) > 1:
            # tells such a pack from older ones, in which the first was changed and the others stayed
            self.changes["images"] = [field.name for field in self._changing]
        if options.upsample_bands is not None:
            fields = band_fields(fields, options.upsample_bands)
        if options.changes_images:
            fields = [self._written(field) if field in self._changing else field for field in fields]
        if options.tile is not None:
            fields = [tiled_field(field, options.tile) for field in fields]
        self.fields = tuple(fields)

    def apply(self, name: str, sample: Sample) -> list[tuple[str, Sample]]:
        """One sample or its tiles. Raises ValueError for an entry that cannot be taken.

        Headers of images that stay as they are, are left to whoever takes their flags.
        """
        if self._options.upsample_bands is not None:
            sample = stack_bands(sample, [field.name for field in self._arrays], self._options.upsample_bands)
        if self._options.changes_images or self._options.check_images:
            for field in self._images:
                self._check_image(sample[field.name], must_be_known=field.is_image)
        if self._options.changes_images and self._images:
            return list(self._changed(name, sample))
        if self._options.tile is not None:
            return list(self._array_tiles(name, sample, self._options.tile))
        return [(name, sample)]

    def _check(self) -> None:
        options = self._options
        lacks_images = (options.resize, options.max_side, options.quality) != (None, None, None) and not self._images
        if lacks_images or (options.tile is not None and not self._images and not self._arrays):
            raise TopoutError(
                "There are no images to change.",
                why="the samples have no field of kind jpeg or png",
                do="leave the option out",
            )
        if options.upsample_bands is not None and not self._arrays:
            raise TopoutError("There are no bands.", why="the samples have no arrays", do="leave --upsample-bands out")
        if options.tile is not None and len(self._images) + (options.upsample_bands is None) * len(self._arrays) > 1:
            raise TopoutError(
                "--tile cuts one field.",
                why="the samples have several images or arrays",
                do="pack a source with one of them",
            )
        if options.check_images or (options.changes_images and self._images):
            _pillow()

    def _written(self, field: Field) -> Field:
        return Field(name=field.name, kind="png" if field.kind == "png" else "jpeg")

    def _check_image(self, data: bytes, *, must_be_known: bool) -> None:
        if must_be_known:
            read_image_header(data)
        elif not data:
            raise ValueError("it is empty")
        if self._options.check_images:
            _decode(data)

    def _changed(self, name: str, sample: Sample) -> Iterator[tuple[str, Sample]]:
        tile = self._options.tile
        if tile is None:
            changed = {field.name: self._encoded(self._shrunk(field, sample), field) for field in self._changing}
            yield name, {**sample, **changed}
            return
        [field] = self._changing
        image = self._shrunk(field, sample)
        for top, left in tile_corners((image.height, image.width), tile):
            part = image.crop((left, top, min(left + tile, image.width), min(top + tile, image.height)))
            yield f"{name}:{top},{left}", {**sample, field.name: self._encoded(part, field)}

    def _array_tiles(self, name: str, sample: Sample, tile: int) -> Iterator[tuple[str, Sample]]:
        field = "bands" if self._options.upsample_bands is not None else self._arrays[0].name
        array = sample[field]
        if array.ndim < 2:
            raise ValueError(f"{field} has {array.ndim} dimensions; tiles need height and width")
        for top, left in tile_corners((array.shape[-2], array.shape[-1]), tile):
            yield f"{name}:{top},{left}", {**sample, field: array[..., top : top + tile, left : left + tile]}

    def _shrunk(self, field: Field, sample: Sample) -> Any:
        image, is_png = _decode(sample[field.name]), field.kind == "png"
        if is_deep(image) and not is_png:
            image = upper_bits(image)
        # beside other images it may be a mask or depths, where a mean of two values is a third that nobody measured
        return self._resized(image, is_exact=len(self._changing) > 1 and is_png and image.mode in _ONE_CHANNEL_MODES)

    def _resized(self, image: Any, *, is_exact: bool) -> Any:
        options = self._options
        side, wanted = min(image.size), options.resize
        if options.max_side is not None:
            side, wanted = max(image.size), options.max_side
        if wanted is None or side <= wanted:
            return image
        size = tuple(max(1, round(length * wanted / side)) for length in image.size)
        if is_exact:
            return image.resize(size, _pillow().Resampling.NEAREST)
        return _in_levels(image).resize(size, _pillow().Resampling.BICUBIC)

    def _encoded(self, image: Any, field: Field) -> bytes:
        target, is_png = io.BytesIO(), field.kind == "png"
        try:
            if is_png:
                _held_by_png(image).save(target, "PNG")
            else:
                held = image if image.mode in _JPEG_MODES else image.convert("RGB")
                held.save(target, "JPEG", quality=self._options.quality or DEFAULT_QUALITY)
        except OSError as error:
            # not of the disk: the target is memory
            raise ValueError(f"it cannot be written as {'PNG' if is_png else 'JPEG'}: {error}") from error
        return target.getvalue()


def _in_levels(image: Any) -> Any:
    """Without palette: Pillow resamples numbers of colours, and black and white, by taking the nearest."""
    if image.mode in ("P", "PA"):
        return image.convert("RGBA" if image.has_transparency_data else "RGB")
    return image.convert("L") if image.mode == "1" else image


def _held_by_png(image: Any) -> Any:
    return image if image.mode in _PNG_MODES else image.convert(_NEAR_MODES.get(image.mode, "RGB"))


def _decode(data: bytes) -> Any:
    """Upright pixels; raises ValueError for what does not decode whole."""
    image_module = _pillow()
    try:
        image = open_image(data)
        image.load()
        return _upright(image)
    except MemoryError:
        raise
    except image_module.DecompressionBombError as error:
        raise ValueError(f"it is taken for a decompression bomb: {error}") from error
    except Exception as error:
        # whatever Pillow's parsers meet in foreign bytes: struct.error, TypeError, IndexError and more
        raise ValueError(f"it does not decode: {error}") from error


def _upright(image: Any) -> Any:
    """Not by ImageOps.exif_transpose, which writes EXIF anew and fails where a tag is not of its kind."""
    turn = _TURNS.get(_orientation(image))
    if turn is None:
        return image
    turned = image.transpose(_pillow().Transpose[turn])
    # were it written again, whoever reads the orientation there would turn the image once more
    turned.info.pop("xmp", None)
    return turned


def _orientation(image: Any) -> int:
    """1, which is upright, where EXIF cannot be read: its pixels may be whole."""
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except MemoryError:
        raise
    except Exception:
        return 1


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise TopoutError(
            "Images cannot be decoded here.",
            why="the package pillow is not installed",
            do="pip install pillow",
            exit_code=ExitCode.ENVIRONMENT,
        ) from error
    return Image
