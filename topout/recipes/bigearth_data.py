"""Patches of Sentinel-2 as in BigEarthNet: read them, make some up, pack them.

    python bigearth_data.py make --patches 512 patches           # made-up patches in the real set's layout
    python bigearth_data.py pack BigEarthNet-v1.0 packs          # packs/train, packs/val, packs/test: 60, 20, 20 %

A patch is a folder with one 16-bit TIFF a band and a JSON file of labels, 1 to 12 of 43. Bands have 120, 60 or 20
pixels a side. Made-up ones can be learnt, and say nothing about how well a network does on the real ones.
"""

import argparse
import csv
import hashlib
import json
import os
from pathlib import Path

import numpy as np
from PIL import Image

from topout.cli.pack import pack_and_tell
from topout.packs.fields import Field
from topout.packs.packing.options import PackOptions
from topout.packs.sources import BadEntry
from topout.schema.errors import TopoutError

# pixels a side: 10 m, 20 m and 60 m on the ground; the order is that of the channels
BANDS = {
    "B01": 20, "B02": 120, "B03": 120, "B04": 120, "B05": 60, "B06": 60,
    "B07": 60, "B08": 120, "B8A": 60, "B09": 20, "B11": 60, "B12": 60,
}  # fmt: skip
# of the real set, in its units (reflectance times 10,000)
MEAN = (340.8, 429.9, 614.2, 590.2, 950.7, 1792.5, 2075.5, 2218.9, 2266.5, 2246.1, 1594.4, 1009.3)
STD = (554.8, 572.4, 582.9, 675.9, 729.9, 1096.0, 1273.5, 1365.5, 1356.1, 1302.3, 1079.2, 818.9)
SIZE = 120
SPLITS = {"train": 0.6, "val": 0.2, "test": 0.2}
MOST_LABELS = 12
LABELS = (  # CORINE Land Cover, level 3, in its order
    "Continuous urban fabric", "Discontinuous urban fabric", "Industrial or commercial units",
    "Road and rail networks and associated land", "Port areas", "Airports", "Mineral extraction sites", "Dump sites",
    "Construction sites", "Green urban areas", "Sport and leisure facilities", "Non-irrigated arable land",
    "Permanently irrigated land", "Rice fields", "Vineyards", "Fruit trees and berry plantations", "Olive groves",
    "Pastures", "Annual crops associated with permanent crops", "Complex cultivation patterns",
    "Land principally occupied by agriculture, with significant areas of natural vegetation", "Agro-forestry areas",
    "Broad-leaved forest", "Coniferous forest", "Mixed forest", "Natural grassland", "Moors and heathland",
    "Sclerophyllous vegetation", "Transitional woodland/shrub", "Beaches, dunes, sands", "Bare rock",
    "Sparsely vegetated areas", "Burnt areas", "Inland marshes", "Peatbogs", "Salt marshes", "Salines",
    "Intertidal flats", "Water courses", "Water bodies", "Coastal lagoons", "Estuaries", "Sea and ocean",
)  # fmt: skip
NUMBERS = {label: number for number, label in enumerate(LABELS)}


def read_patch(folder):
    """Bands by name, at their own sizes, and `labels`: a whole number with a bit for each label."""
    folder = Path(folder)
    sample = {}
    for band, side in BANDS.items():
        with Image.open(folder / f"{folder.name}_{band}.tif") as opened:
            pixels = np.asarray(opened)
        if pixels.shape != (side, side):
            raise ValueError(f"{band} has the shape {pixels.shape} instead of {(side, side)}")
        sample[band] = pixels.astype(np.uint16)
    labels = json.loads((folder / f"{folder.name}_labels_metadata.json").read_bytes())["labels"]
    unknown = sorted(set(labels) - NUMBERS.keys())
    if unknown or not labels:
        raise ValueError(f"{unknown[0]!r} is none of the 43 labels" if unknown else "it has no label")
    sample["labels"] = sum(1 << NUMBERS[label] for label in set(labels))
    return sample


def split_names(folder, lists=None):
    """Names of patches for train, val and test: as `lists` has them, one CSV each, else by a hash of their names."""
    if lists is not None:
        return {split: _listed(Path(lists, f"{split}.csv")) for split in SPLITS}
    names = []
    if Path(folder).is_dir():
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir()]
    names.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
    num_train, num_val = round(SPLITS["train"] * len(names)), round(SPLITS["val"] * len(names))
    split = {
        "train": names[:num_train],
        "val": names[num_train : num_train + num_val],
        "test": names[num_train + num_val :],
    }
    if not all(split.values()):
        raise TopoutError(
            f"{folder} has {len(names)} patches, too few for train, val and test.",
            why="Each patch is a folder of its own, and a fifth of them goes to val, another to test.",
            do=f"give the folder that holds the patches, or make some: bigearth_data.py make --patches 512 {folder}",
        )
    return split


def _listed(path):
    with path.open(newline="") as rows:
        return [row[0] for row in csv.reader(rows) if row]


class PatchListing:
    """Patches as `topout pack` wants its sources: known by name and size before any is read."""

    classes = None
    fields = (
        *(Field(name=band, kind="array", shape=(side, side), dtype="<u2") for band, side in BANDS.items()),
        Field(name="labels", kind="int"),
    )

    def __init__(self, folder, names):
        self.folder, self.names = Path(folder), sorted(names)
        self.sizes = np.full(len(self.names), sum(2 * side * side for side in BANDS.values()), dtype=np.int64)
        self.num_files, self.num_folders = (len(BANDS) + 1) * len(self.names), len(self.names)

    @property
    def fingerprint(self):
        """Names and times of change of the folders: their 13 files would take 13 times as long to ask."""
        digest = hashlib.sha256()
        for name in self.names:
            path = self.folder / name
            digest.update(f"{name} {path.stat().st_mtime_ns if path.exists() else None}\n".encode())
        return digest.hexdigest()

    def read_range(self, start, stop):
        for number in range(start, stop):
            try:
                yield read_patch(self.folder / self.names[number])
            except (OSError, ValueError, KeyError) as error:
                yield BadEntry(number=number, name=self.names[number], reason=f"{type(error).__name__}: {error}")


def pack_patches(folder, packs, *, lists=None, own_sizes=False, on_error="stop", is_quiet=False):
    """All bands at 120x120, or each at its own size: half the bytes, for devices that have time to resize them."""
    options = PackOptions(upsample_bands=None if own_sizes else (SIZE, SIZE), on_error=on_error)
    for split, names in split_names(folder, lists).items():
        pack_and_tell(
            PatchListing(folder, names), ("bigearth", Path(folder)), Path(packs, split), options, is_quiet=is_quiet
        )


def make_patches(folder, num_patches, seed=0):
    """A few fields to a patch, each with the spectrum and the stripes of its label, and noise on top."""
    spectra = np.random.default_rng(1).uniform(-1.0, 1.5, (len(LABELS), len(BANDS)))  # one world for all seeds
    # some labels are common and most are not, as on the ground
    shares = 1 / np.arange(2, len(LABELS) + 2)
    for number in range(num_patches):
        draw = np.random.default_rng((seed, number))
        num_labels = int(min(MOST_LABELS, draw.geometric(0.35)))
        labels = draw.choice(len(LABELS), num_labels, replace=False, p=shares / shares.sum())
        fields, shading = _fields(draw, num_labels)
        name = f"S2A_MSIL2A_20170613T101031_{number // 100}_{number % 100}"
        path = Path(folder, name)
        path.mkdir(parents=True)
        texture = 0.3 * shading * np.cos(labels)[fields]
        for band, (code, side) in enumerate(BANDS.items()):
            values = _shrunk(spectra[labels, band][fields] + texture, side)
            pixels = MEAN[band] + STD[band] * (values + draw.normal(0, 0.3, (side, side)))
            Image.fromarray(np.clip(pixels, 0, 65535).astype(np.uint16)).save(path / f"{name}_{code}.tif")
        said = {"labels": [LABELS[label] for label in labels], "acquisition_date": "2017-06-13 10:10:32"}
        (path / f"{name}_labels_metadata.json").write_text(json.dumps(said))


def _fields(draw, num_labels):
    """Which label each pixel has, by the nearest of some points; and stripes between -1 and 1."""
    rows, columns = np.mgrid[:SIZE, :SIZE]
    points = draw.uniform(0, SIZE, (2, 2 * num_labels))
    nearest = ((rows - points[0, :, None, None]) ** 2 + (columns - points[1, :, None, None]) ** 2).argmin(0)
    along = draw.uniform(0, np.pi)
    return nearest % num_labels, np.sin((rows * np.sin(along) + columns * np.cos(along)) / draw.uniform(1, 4))


def _shrunk(values, side):
    step = SIZE // side
    return values.reshape(side, step, side, step).mean((1, 3))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    make = verbs.add_parser("make", help="made-up patches")
    make.add_argument("--patches", type=int, default=512)
    make.add_argument("--seed", type=int, default=0)
    make.add_argument("folder", type=Path)
    pack = verbs.add_parser("pack", help="patches into packs")
    pack.add_argument("folder", type=Path)
    pack.add_argument("packs", type=Path)
    pack.add_argument("--lists", type=Path, help="a folder with train.csv, val.csv, test.csv: names of patches")
    pack.add_argument("--own-sizes", action="store_true", help="leave each band at its size; they are resized in use")
    pack.add_argument("--on-error", choices=("stop", "skip"), default="stop")
    options = parser.parse_args()
    if options.verb == "make":
        make_patches(options.folder, options.patches, options.seed)
    else:
        pack_patches(
            options.folder, options.packs, lists=options.lists, own_sizes=options.own_sizes, on_error=options.on_error
        )


if __name__ == "__main__":
    main()
