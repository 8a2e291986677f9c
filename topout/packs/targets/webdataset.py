"""A folder of WebDataset's tar archives, each of at most a gigabyte or one sample.

    image -> .jpg or .png    label -> .cls    others -> NAME.cls, .float, .txt, .json, .npy, or .NAME for bytes

A name that is not its own key (it has dots, as `n01/a.jpg`) is kept in an extended header, which other readers of
WebDataset pass over.
"""

import io
import tarfile
from pathlib import Path

from topout.packs.fields import Field, Sample
from topout.packs.foreign.arrival import arriving_folder
from topout.packs.foreign.field_table import write_table
from topout.packs.foreign.pack_samples import named_samples
from topout.packs.foreign.tar_members import FIELDS_KEY, NAME_KEY
from topout.packs.foreign.webdataset import bytes_of, extensions_of, key_of
from topout.packs.pack import Pack
from topout.packs.targets import Progress
from topout.schema.errors import TopoutError

_SHARD_BYTES = 1 << 30


def write(pack: Pack, destination: Path, progress: Progress, shard_bytes: int = _SHARD_BYTES) -> None:
    try:
        extensions = extensions_of(pack.fields)
    except ValueError as error:
        raise TopoutError(
            f"{pack.path} cannot become WebDataset.", why=str(error), do="pack it with other names of fields"
        ) from error
    table = write_table(pack.fields, pack.manifest.classes)
    with arriving_folder(destination) as folder:
        archives = _Archives(folder, table, shard_bytes)
        try:
            for name, sample, num_bytes in named_samples(pack):
                archives.add(name, sample, extensions)
                progress.add(1, num_bytes)
        finally:
            archives.close()


class _Archives:
    """The archive being written; a new one is begun when the next sample would not fit."""

    def __init__(self, folder: Path, table: str, shard_bytes: int) -> None:
        self._folder = folder
        self._table = table
        self._shard_bytes = shard_bytes
        self._number = 0
        self._archive = self._open()
        self._keys: set[int] = set()

    def add(self, name: str, sample: Sample, extensions: dict[str, Field]) -> None:
        members = {extension: bytes_of(field, sample[field.name]) for extension, field in extensions.items()}
        needed_bytes = sum(len(data) + 2 * tarfile.BLOCKSIZE for data in members.values())
        if self._archive.offset > tarfile.RECORDSIZE and self._archive.offset + needed_bytes > self._shard_bytes:
            self.close()
            self._number += 1
            self._archive = self._open()
        key = self._unused(key_of(name, list(extensions.values())))
        headers = {} if key == name else {NAME_KEY: name}
        for extension, data in members.items():
            info = tarfile.TarInfo(f"{key}.{extension}")
            info.size = len(data)
            info.pax_headers = headers
            self._archive.addfile(info, io.BytesIO(data))
            vars(self._archive)["members"].clear()  # or it keeps them all
            headers = {}

    def close(self) -> None:
        self._archive.close()

    def _open(self) -> tarfile.TarFile:
        path = self._folder / f"shard-{self._number:05d}.tar"
        return tarfile.open(path, "w", format=tarfile.PAX_FORMAT, pax_headers={FIELDS_KEY: self._table})

    def _unused(self, key: str) -> str:
        """Two names may differ in dots only; hashes of the keys suffice, for a false alarm merely renames one."""
        found, number = key, 1
        while hash(found) in self._keys:
            number += 1
            found = f"{key}_{number}"
        self._keys.add(hash(found))
        return found
