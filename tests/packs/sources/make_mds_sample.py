"""Writes mds_sample/ with the real package; run where mosaicml-streaming 0.13.0 is installed. Tests do not need it.

python make_mds_sample.py mds_sample
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image
from streaming import MDSWriter

COLUMNS = {
    "array": "ndarray",
    "fixed": "ndarray:float32:2,3",
    "typed": "ndarray:int16",
    "count": "int",
    "small": "uint8",
    "share": "float32",
    "exact": "float64",
    "digits": "str_int",
    "image": "jpeg",
    "mask": "png",
    "text": "str",
    "blob": "bytes",
    "meta": "json",
}


def sample(number: int) -> dict:
    return {
        "array": np.arange(number + 1, dtype=np.uint16).reshape(-1, 1),
        "fixed": np.full((2, 3), number / 4, np.float32),
        "typed": np.arange(-number, 1, dtype=np.int16),
        "count": -number,
        "small": np.uint8(number),
        "share": np.float32(number / 8),
        "exact": np.float64(number / 10),
        "digits": 10**20 if number == 9 else number,
        "image": Image.new("RGB", (8, 6), (number, 0, 255)),
        "mask": Image.new("L", (5, 4), number),
        "text": f"Nº {number}",
        "blob": bytes(range(number)),
        "meta": {"number": number, "list": [None, True]},
    }


def main(folder: str) -> None:
    kinds = {"plain": (None, ["sha1", "xxh64"]), "compressed": ("zstd:7", ["sha256"]), "gzipped": ("gz", None)}
    for name, (compression, hashes) in kinds.items():
        with MDSWriter(
            columns=COLUMNS, out=str(Path(folder, name)), compression=compression, hashes=hashes, size_limit=6000
        ) as out:
            for number in range(10):
                out.write(sample(number))


if __name__ == "__main__":
    main(sys.argv[1])
