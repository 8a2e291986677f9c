"""A folder of files, any nesting: each file a sample, its relative path the name.

With images in class folders the fields are `image` and `label` (the place of the top folder among the sorted ones, as
in torchvision's ImageFolder); with images elsewhere `image`; else `data`. Few files that are no images among many
that are (a README, a Thumbs.db) are left out and counted, pipes and sockets always. A link that leads nowhere is a bad
entry. Not for a folder that holds train and val: pack each on its
own.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from topout.packs.fields import Field, Sample
from topout.packs.file_tree import FileTree, walk_files
from topout.packs.names import encode_name, encode_names
from topout.packs.sources import BadEntry, SourceOptions
from topout.schema.errors import TopoutError

_JPEG = (".jpg", ".jpeg", ".jpe")
_PNG = (".png",)
_IMAGES = (*_JPEG, *_PNG, ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
_SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing"}
_MOST_OTHERS_SHARE = 0.1
"""With more files than this that are no images, it is a folder of files and none is left out."""


class FolderListing:
    """Made by `open_listing`."""

    def __init__(
        self,
        tree: FileTree,
        kept: NDArray[np.int64],
        fields: tuple[Field, ...],
        classes: list[str],
        notes: tuple[str, ...] = (),
    ) -> None:
        self.fields = fields
        left_out = len(tree.paths) - len(kept)
        others = tree.num_others
        self.notes = (
            *notes,
            *([f"{left_out} files are no images and were left out."] if left_out else []),
            *([f"{others} pipes, sockets, devices or links back up were left out."] if others else []),
        )
        """For a person, about what was found."""
        self.classes = tuple(classes) or None
        self.names: Sequence[str] = [tree.paths[place] for place in kept.tolist()]
        self.sizes: NDArray[np.int64] = tree.sizes[kept]
        self.num_files = len(tree.paths)
        self.num_folders = tree.num_folders
        self._root = os.fspath(tree.root)
        self._changed_ns = tree.changed_ns[kept]
        self._labels = {name: number for number, name in enumerate(classes)}

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(encode_names([encode_name(name) for name in self.names]))
        digest.update(self.sizes.tobytes())
        digest.update(self._changed_ns.tobytes())
        return digest.hexdigest()

    def read_range(self, start: int, stop: int) -> Iterator[Sample | BadEntry]:
        field = self.fields[0].name
        for number in range(start, stop):
            name = self.names[number]
            try:
                data = _read(f"{self._root}/{name}", int(self.sizes[number]), int(self._changed_ns[number]))
            except (OSError, ValueError) as error:
                yield BadEntry(number=number, name=name, reason=_reason(f"{self._root}/{name}", error))
                continue
            sample: Sample = {field: data}
            if self.classes is not None:
                sample["label"] = self._labels[name.partition("/")[0]]
            yield sample


def recognises(path: Path) -> bool:
    return path.is_dir()


def open_listing(path: Path, options: SourceOptions) -> FolderListing:
    if options.columns is not None:
        raise TopoutError(
            "--columns cannot be given with a folder of files.",
            why=f"{path} is packed file by file; it has no columns to choose from",
            do="leave it out, or name the kind of what lies there: --from",
        )
    tree = walk_files(path, options.num_threads)
    endings = [os.path.splitext(name)[1].lower() for name in tree.paths]  # noqa: PTH122 (ten times as fast)
    are_images = np.array([ending in _IMAGES for ending in endings], dtype=bool)
    num_others = len(endings) - int(are_images.sum())
    if not are_images.any() or num_others > _MOST_OTHERS_SHARE * len(endings):
        notes = _not_as_images(num_others, len(endings)) if are_images.any() else ()
        return FolderListing(tree, np.arange(len(endings)), (Field(name="data", kind="bytes"),), [], notes)
    kept = np.flatnonzero(are_images)
    kind = _kind({endings[place] for place in kept.tolist()})
    classes = _classes([tree.paths[place] for place in kept.tolist()])
    notes = ()
    if looks_like_splits(classes):
        notes = (f"{', '.join(classes)} look like parts of a dataset, not classes: no labels. Pack each on its own.",)
        classes = []
    fields = [Field(name="image", kind=kind), *([Field(name="label", kind="int")] if classes else [])]
    return FolderListing(tree, kept, tuple(fields), classes, notes)


def _not_as_images(num_others: int, num_files: int) -> tuple[str, ...]:
    return (
        f"{num_others:,} of {num_files:,} files are no images, more than a tenth: all files became the field data, and "
        "there are no labels. To get image and label, pack a folder without the others.",
    )


def looks_like_splits(classes: Sequence[str]) -> bool:
    """Whether what looks like class folders is rather the parts of a dataset."""
    return bool(classes) and {name.lower() for name in classes} <= _SPLITS


def _kind(endings: set[str]) -> str:
    if endings <= set(_JPEG):
        return "jpeg"
    return "png" if endings <= set(_PNG) else "bytes"


def _classes(paths: Sequence[str]) -> list[str]:
    """Top folders, when every image lies in one."""
    tops = {path.partition("/")[0] for path in paths if "/" in path}
    return sorted(tops) if all("/" in path for path in paths) else []


def _reason(path: str, error: OSError | ValueError) -> str:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    try:
        return f"it is a link to {os.readlink(path)!r}: {why}"  # noqa: PTH115 (names need not be text)
    except OSError:
        return why


def _read(path: str, size: int, changed_ns: int) -> bytes:
    """Raises ValueError where the file is not as it was listed: what is packed must be what was planned."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if (found.st_size, found.st_mtime_ns) != (size, changed_ns):
            raise ValueError("it has changed since packing began")
        parts = []
        left = size
        while left:
            part = os.read(fd, left)
            if not part:
                raise ValueError("it became shorter while it was read")
            parts.append(part)
            left -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        os.close(fd)
