"""A folder of files: a sample's image or bytes under its name, nested as it was.

A name without an ending gets the image's. Labels that are class folders need no file; other numbers, texts and JSON go
to `fields.jsonl`, a line a sample, and arrays to NAME.FIELD.npy. Not for small records by the million: that is what
packs are for.
"""

import json
from pathlib import Path, PurePosixPath
from typing import IO

from topout.packs.fields import Field, Sample
from topout.packs.foreign.arrival import arriving_folder
from topout.packs.foreign.npy import write_npy
from topout.packs.foreign.pack_samples import named_samples
from topout.packs.pack import Pack
from topout.packs.targets import Progress
from topout.schema.errors import TopoutError

FIELDS_FILE = "fields.jsonl"
_ENDINGS = {"jpeg": (".jpg", ".jpeg", ".jpe"), "png": (".png",)}


def write(pack: Pack, destination: Path, progress: Progress) -> None:
    with arriving_folder(destination) as folder:
        beside = (folder / FIELDS_FILE).open("x", encoding="utf-8", errors="surrogateescape")
        with beside:
            for name, sample, num_bytes in named_samples(pack):
                _write_sample(folder / _inside(name), pack, name, sample, beside)
                progress.add(1, num_bytes)
            is_empty = beside.tell() == 0
        if is_empty:
            (folder / FIELDS_FILE).unlink()


def _write_sample(path: Path, pack: Pack, name: str, sample: Sample, beside: IO[str]) -> None:
    main = _main_field(pack)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        root = path.parents[name.count("/")]
        in_the_way = next(parent for parent in PurePosixPath(name).parents if (root / parent).is_file())
        raise _collision(in_the_way.as_posix(), pack, name) from error
    if main is not None:
        endings = _ENDINGS.get(main.kind, ())
        is_complete = not endings or path.suffix.lower() in endings
        _create(path if is_complete else path.with_name(path.name + endings[0]), bytes(sample[main.name]), pack, name)
    values = {}
    for field in pack.fields:
        value = sample[field.name]
        if field == main or (field.name == "label" and _is_class_folder(pack, name, value)):
            continue
        if field.kind == "array":
            _create(path.with_name(f"{path.name}.{field.name.replace('/', '_')}.npy"), write_npy(value), pack, name)
        elif field.kind in ("bytes", "jpeg", "png"):
            _create(path.with_name(f"{path.name}.{field.name.replace('/', '_')}"), bytes(value), pack, name)
        else:
            values[field.name] = value
    if values:
        beside.write(json.dumps({"name": name, **values}, ensure_ascii=False) + "\n")


def _main_field(pack: Pack) -> Field | None:
    """The one that becomes the file of the sample's name."""
    return next((field for field in pack.fields if field.kind in ("jpeg", "png", "bytes")), None)


def _is_class_folder(pack: Pack, name: str, label: object) -> bool:
    classes = pack.manifest.classes
    if classes is None or not isinstance(label, int) or not 0 <= label < len(classes):
        return False
    return "/" in name and name.partition("/")[0] == classes[label]


def _inside(name: str) -> PurePosixPath:
    parts = name.split("/")
    if not name or "\0" in name or any(part in ("", ".", "..") for part in parts) or name == FIELDS_FILE:
        raise TopoutError(
            f"{name!r} cannot be a file of the folder.",
            why=f"names must be relative paths without '.' and '..' that stay inside, other than {FIELDS_FILE}",
            do="choose another target, such as webdataset",
        )
    return PurePosixPath(name)


def _create(path: Path, data: bytes, pack: Pack, name: str) -> None:
    try:
        with path.open("xb") as file:
            file.write(data)
    except FileExistsError as error:
        raise _collision((PurePosixPath(name).parent / path.name).as_posix(), pack, name) from error


def _collision(made: str, pack: Pack, name: str) -> TopoutError:
    """`made` is there already, where `name` needs a file or a folder."""
    other = _maker_of(made, pack, name)
    return TopoutError(
        f"{name!r} cannot be written to a folder.",
        why=f"{'another sample' if other is None else f'sample {other!r}'} has made {made!r} already",
        do="choose another target: --to webdataset, lmdb, tfrecord or hdf5",
    )


def _maker_of(made: str, pack: Pack, name: str) -> str | None:
    """The sample because of which a file or folder is there; None where it cannot be told."""
    # a name without an ending has got the image's
    for other in (made, made.rpartition(".")[0]):
        if other != name and pack.find(other) is not None:
            return other
    names = (pack.name(number) for number in range(len(pack)))
    return next((other for other in names if other.startswith(f"{made}/")), None)
