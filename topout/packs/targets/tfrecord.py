"""A folder of TFRecord files of tf.train.Example, each of at most 256 MiB or one sample, every record with checksums.

    __key__ -> the name    int -> int64_list    float -> float_list    bytes, str, JSON -> bytes_list
    arrays  -> x (bytes, little-endian), x/shape, x/dtype

A float field that float32 cannot hold exactly is eight bytes, for `tf.io.decode_raw(x, tf.float64)`.
"""

from pathlib import Path
from typing import BinaryIO

import numpy as np

from topout.packs.foreign import field_table
from topout.packs.foreign.arrival import arriving_folder
from topout.packs.foreign.example import write_example
from topout.packs.foreign.features import NAME, feature_names, features_of
from topout.packs.foreign.pack_samples import named_samples
from topout.packs.foreign.tfrecord_frames import frame
from topout.packs.pack import Pack
from topout.packs.targets import Progress
from topout.schema.errors import TopoutError

_FILE_BYTES = 256 << 20
_LONGEST_RECORD_BYTES = (1 << 31) - 1
"""Protocol Buffers allow no longer message."""


def write(pack: Pack, destination: Path, progress: Progress, file_bytes: int = _FILE_BYTES) -> None:
    _check_fields(pack)
    doubles = [field.name for field in pack.fields if field.kind == "float" and not _fits_float32(pack, field.name)]
    with arriving_folder(destination) as folder:
        (folder / field_table.FILE_NAME).write_text(field_table.write_table(pack.fields, pack.manifest.classes))
        number = 0
        file = _open(folder, number)
        try:
            for name, sample, num_bytes in named_samples(pack):
                # the name stands first, where a listing finds it without reading the record
                key = {NAME: [name.encode("utf-8", "surrogateescape")]}
                record = write_example({**key, **features_of(pack.fields, sample, doubles)})
                if len(record) > _LONGEST_RECORD_BYTES:
                    raise TopoutError(
                        f"{name} cannot become a tf.train.Example.",
                        why=f"it has {len(record)} bytes, and a message of Protocol Buffers at most 2 GiB",
                        do="choose another target, such as hdf5",
                    )
                if file.tell() and file.tell() + len(record) > file_bytes:
                    file.close()
                    number += 1
                    file = _open(folder, number)
                file.write(frame(record))
                progress.add(1, num_bytes)
        finally:
            file.close()


def _check_fields(pack: Pack) -> None:
    taken = {NAME: "the samples' names"}
    for field in pack.fields:
        for name in feature_names(field):
            if name in taken:
                raise TopoutError(
                    f"Field {field.name!r} cannot be a feature of tf.train.Example.",
                    why=f"{name!r} would hold {taken[name]} and that field, and a feature holds one of them",
                    do="choose another target, such as webdataset",
                )
            taken[name] = f"field {field.name!r}"


def _open(folder: Path, number: int) -> BinaryIO:
    return (folder / f"samples-{number:05d}.tfrecord").open("wb")


def _fits_float32(pack: Pack, name: str) -> bool:
    values = pack.column(name)
    with np.errstate(over="ignore"):
        return bool(np.array_equal(values.astype(np.float32).astype(np.float64), values, equal_nan=True))
