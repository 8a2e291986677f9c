"""`topout.PackedDataset`: a pack as a data set for the stock DataLoader, in place of an ImageFolder.

    dataset = topout.PackedDataset("train.pack", transform=transforms)
    DataLoader(dataset, batch_size=64, num_workers=8, shuffle=True)

Workers may be forked or spawned. Slower than `topout.Loader`, since each sample goes through Python and each batch
through a pipe, and right where transforms are written in Python.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from topout.feed.decode import open_rgb
from topout.feed.image_fields import decoded_fields
from topout.feed.staging.origin import is_remote
from topout.packs.fields import Sample
from topout.packs.pack import Pack, open_pack
from topout.schema.errors import TopoutError


class PackedDataset:
    """Samples by number: (PIL image, label) for packs of just these, like ImageFolder, else a dict by field.

    Images in dicts are PIL images, too. `transform` gets the image or the dict, `target_transform` the label.
    A damaged sample raises; `on_damage='repair'` reads it again from the source, if that is still there. `image` names
    the one field to decode; without it, those that the pack says are images.
    """

    def __init__(
        self,
        path: str | Path,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        on_damage: str = "stop",
        image: str | None = None,
    ) -> None:
        _check_reading(path, on_damage)
        self.path = Path(path)
        self.transform = transform
        self.target_transform = target_transform
        self.on_damage = on_damage
        self.pack: Pack = open_pack(self.path, self.on_damage)
        self._images = decoded_fields(self.pack.fields, image)
        names = {field.name for field in self.pack.fields}
        self._is_pair = len(self._images) == 1 and names == {self._images[0], "label"}

    def __len__(self) -> int:
        return len(self.pack)

    def __getitem__(self, number: int) -> Any:
        return self._shaped(number, self.pack.sample(number))

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """A whole batch at once, as DataLoader asks for it."""
        return [self[number] for number in numbers]

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(len(self)))

    def __getstate__(self) -> dict[str, Any]:
        """For spawned workers: open files stay here, the path travels."""
        state = self.__dict__.copy()
        del state["pack"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.pack = open_pack(self.path, self.on_damage)

    @property
    def classes(self) -> list[str]:
        return list(self.pack.manifest.classes or ())

    @property
    def class_to_idx(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.classes)}

    @property
    def targets(self) -> list[int]:
        """All labels, from the index: no sample is read."""
        return [int(label) for label in self.pack.column("label")]

    def stream(self, **options: Any) -> Any:
        """The same samples as an iterable data set; see `topout.feed.stream.stream`."""
        from topout.feed.stream import stream

        return stream(self, **options)

    def _shaped(self, number: int, sample: Sample) -> Any:
        for name in self._images:
            sample[name] = open_rgb(sample[name], self.pack.name(number), self.path)
        if not self._is_pair:
            return sample if self.transform is None else self.transform(sample)
        image, label = sample[self._images[0]], sample["label"]
        if self.transform is not None:
            image = self.transform(image)
        return image, label if self.target_transform is None else self.target_transform(label)


def _check_reading(path: Any, on_damage: str) -> None:
    if not isinstance(path, (str, os.PathLike)):
        raise TopoutError(
            f"{path!r} is no pack.", why="A data set is opened by the path of a pack.", do="PackedDataset('train.pack')"
        )
    if is_remote(path):
        raise TopoutError(
            f"A data set cannot be read from the address {path}.",
            why="PackedDataset reads packs in folders; what lies behind an address has to be brought near first.",
            do="topout.Loader takes addresses, and so does topout.feed.staging.staged_pack.open_staged",
        )
    if on_damage == "skip":
        raise TopoutError(
            "A data set by number cannot skip damaged samples.",
            why="It has a sample for every number, so there is nothing that one could be left out of.",
            do="topout.Loader(..., on_damage='skip'); or on_damage='repair', if the source is still there",
        )
