"""What a user asks of `topout pack`, and what of it decides the bytes of the pack."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from topout.packs.packing.writer import SHARD_BYTES
from topout.schema.errors import TopoutError

ON_ERROR = ("stop", "skip")
DEFAULT_QUALITY = 90
_LARGEST_FILE = 2**63 - 1
"""Bytes; offsets have 64 bits, one of them a sign."""


@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """Sizes in pixels."""

    source: str | None = None
    """Name of the source's plug-in; None: whichever recognises it."""
    columns: tuple[str, ...] | None = None
    """Fields to take, of sources that have several; None: all."""
    shard_bytes: int = SHARD_BYTES
    codecs: Mapping[str, str] = field(default_factory=dict)
    resize: int | None = None
    """Shorter side of images that are larger."""
    max_side: int | None = None
    """Longer side of images that are larger."""
    quality: int | None = None
    """Of JPEGs written anew, 1 to 100."""
    images: tuple[str, ...] | None = None
    """Image fields that `resize`, `max_side` and `quality` change; None: all. For older packs: only the first was."""
    tile: int | None = None
    """Side of the tiles into which images and arrays are cut."""
    upsample_bands: tuple[int, int] | None = None
    """Height and width to which all bands of a sample are brought."""
    check_images: bool = False
    """Decode every image whole; else its header is read."""
    num_workers: int | None = None
    on_error: str = "stop"
    is_replacing: bool = False

    def __post_init__(self) -> None:
        _check(self)

    @property
    def changes(self) -> dict[str, Any]:
        """What decides which samples there are and what they hold. Empty: they are taken as they come.

        Goes into the manifest, with what `Preprocessor.changes` adds.
        """
        asked = {
            "columns": None if self.columns is None else list(self.columns),
            "resize": self.resize,
            "max_side": self.max_side,
            "quality": self.quality,
            "tile": self.tile,
            "upsample_bands": None if self.upsample_bands is None else list(self.upsample_bands),
            # a number: earlier readers take a manifest with `true` in it for a damaged one
            "check_images": 1 if self.check_images else None,
        }
        return {name: value for name, value in asked.items() if value is not None}

    @property
    def keeps_sizes(self) -> bool:
        """Samples are as long as the source's entries; looking at images alters none."""
        return not self.changes.keys() - {"check_images"}

    @property
    def changes_images(self) -> bool:
        return any(value is not None for value in (self.resize, self.max_side, self.quality, self.tile))


def _check(options: PackOptions) -> None:
    if options.on_error not in ON_ERROR:
        raise _refusal("--on-error", options.on_error, "it is stop or skip")
    if options.resize is not None and options.max_side is not None:
        raise _refusal("--resize with --max-side", options.max_side, "each alone says how large images become")
    if options.quality is not None and not 1 <= options.quality <= 100:
        raise _refusal("--quality", options.quality, "it is 1 to 100")
    sides = {"--resize": options.resize, "--max-side": options.max_side, "--tile": options.tile}
    for flag, side in sides.items():
        if side is not None and side < 1:
            raise _refusal(flag, side, "it is a number of pixels")
    if not 1 <= options.shard_bytes <= _LARGEST_FILE:
        raise _refusal(
            "--shard-size", options.shard_bytes, "it is a size such as 256M, and no file is larger than 8 EiB"
        )
    if options.num_workers is not None and options.num_workers < 1:
        raise _refusal("--workers", options.num_workers, "at least one must do the work")


def _refusal(flag: str, value: object, why: str) -> TopoutError:
    return TopoutError(f"{flag} cannot be {value}.", why=why, do="topout pack --help")
