"""WebDataset's conventions: a sample is the members of one key, and a member's extension says what it holds.

    n01/000012.jpg  n01/000012.cls  n01/000012.meta.json   ->   key n01/000012, fields image, label, meta

The key ends at the first dot of the path's last part. Pickles (.pyd, .pickle, .pth) stay bytes: they are never opened.
"""

from collections.abc import Callable, Iterable, Sequence

from topout.packs.fields import Field, Value
from topout.packs.foreign.json_text import read_json, write_json
from topout.packs.foreign.npy import read_npy, write_npy
from topout.packs.foreign.signature import shared_kind

_KINDS = {
    **dict.fromkeys(("jpg", "jpeg"), "jpeg"),
    "png": "png",
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), "int"),
    **dict.fromkeys(("txt", "text", "transcript"), "str"),
    **dict.fromkeys(("json", "jsn"), "json"),
    "float": "float",
    "npy": "array",
    "bin": "bytes",
}
_SUFFIXES = {
    "jpeg": "jpg", "png": "png", "int": "cls", "str": "txt", "json": "json", "float": "float", "array": "npy",
    "bytes": "bin",
}  # fmt: skip
_IMAGES = ("jpeg", "png")


def split_key(path: str) -> tuple[str, str]:
    folder, slash, last = path.rpartition("/")
    key, _, extension = last.partition(".")
    return f"{folder}{slash}{key}", extension.lower()


def fields_of(extensions: Sequence[str], look: Callable[[str], Iterable[bytes]]) -> dict[str, Field]:
    """A field for each extension; `look` gives some of the members with it, since extensions are not always true."""
    kinds = {extension: _kind(extension, look) for extension in extensions}
    images = [extension for extension in extensions if "." not in extension and _kind_by_name(extension) in _IMAGES]
    names = {extension: _field_name(extension, is_only_image=images == [extension]) for extension in extensions}
    taken = list(names.values())
    fields = {}
    for extension in sorted(extensions, key=lambda each: (names[each] != "image", names[each] != "label", each)):
        name = names[extension] if taken.count(names[extension]) == 1 else extension
        fields[extension] = _typed(name, kinds[extension], look(extension))
    return fields


def extensions_of(fields: Sequence[Field]) -> dict[str, Field]:
    """The extension under which each field is written. Raises ValueError when two would share one."""
    extensions: dict[str, Field] = {}
    for field in fields:
        extension = _extension(field)
        if extension in extensions:
            raise ValueError(f"fields {extensions[extension].name!r} and {field.name!r} both become .{extension}")
        extensions[extension] = field
    return extensions


def value_of(field: Field, data: bytes) -> Value:
    """Raises ValueError for what is not of the field's kind."""
    if field.kind in ("int", "float"):
        text = data.decode("ascii", "replace").strip()
        try:
            return int(text) if field.kind == "int" else float(text)
        except ValueError as error:
            raise ValueError(f"{field.name} is {text[:40]!r}, not {field.kind}") from error
    if field.kind == "str":
        return data.decode("utf-8", "surrogateescape")
    if field.kind == "json":
        return read_json(data)
    return read_npy(data) if field.kind == "array" else data


def bytes_of(field: Field, value: Value) -> bytes:
    if field.kind in ("int", "float"):
        return repr(value).encode("ascii")
    if field.kind == "str":
        return str(value).encode("utf-8", "surrogateescape")
    if field.kind == "json":
        return write_json(value)
    return write_npy(value) if field.kind == "array" else bytes(value)


def key_of(name: str, fields: Sequence[Field]) -> str:
    """A key that every reader splits off whole again: no dot in its last part, nothing that leads out of a folder."""
    folder, _, last = name.rpartition("/")
    stem, dot, extension = last.rpartition(".")
    if dot and stem and any(_kind_by_name(extension.lower()) == field.kind for field in fields if field.is_image):
        last = stem
    parts = [part if part.strip(".") else "_" * len(part) for part in folder.split("/") if part]
    key = "/".join([*parts, last.replace(".", "_") or "_"])
    return "".join("_" if character in "\n\r\0" else character for character in key)


def _kind_by_name(extension: str) -> str:
    return _KINDS.get(extension.rpartition(".")[2], "bytes")


def _kind(extension: str, look: Callable[[str], Iterable[bytes]]) -> str:
    kind = _kind_by_name(extension)
    if kind in (*_IMAGES, "bytes"):
        return shared_kind(look(extension))
    # the decoder of the kind is the judge: a .cls with a word in it is text
    field = Field(name=extension, kind=kind)
    try:
        for data in look(extension):
            value_of(field, data)
    except ValueError:
        return "str" if kind in ("int", "float") else "bytes"
    return kind


def _field_name(extension: str, *, is_only_image: bool) -> str:
    if is_only_image:
        return "image"
    if extension == "cls":
        return "label"
    name, dot, _ = extension.rpartition(".")
    return name if dot and extension.rpartition(".")[2] in _KINDS else extension


def _typed(name: str, kind: str, looked_at: Iterable[bytes]) -> Field:
    if kind != "array":
        return Field(name=name, kind=kind)
    arrays = [read_npy(data) for data in looked_at]
    shapes = {array.shape for array in arrays}
    dtypes = {array.dtype.newbyteorder("<").str for array in arrays}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    return Field(name=name, kind=kind, dtype=dtype, shape=shapes.pop() if dtype and len(shapes) == 1 else None)


def _extension(field: Field) -> str:
    name = field.name.replace("/", "_").lower()
    suffix = _SUFFIXES[field.kind]
    if (name == "image" and field.is_image) or (name == "label" and field.kind == "int"):
        return suffix
    if _kind_by_name(name) == field.kind and name not in ("image", "label"):
        return name
    return f"{name}.{suffix}"
