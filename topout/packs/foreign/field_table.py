"""The fields of a pack as JSON beside or inside another format: unpacked samples keep their kinds when read back.

Other programs need not look at it: every format is complete without. Its codecs are not kept; what is unpacked is raw.
"""

import json
from collections.abc import Sequence

from topout.packs.fields import KINDS, Field, checked_fields
from topout.schema.errors import TopoutError

FILE_NAME = "topout-fields.json"
_VERSION = 1


def write_table(fields: Sequence[Field], classes: Sequence[str] | None) -> str:
    rows = [{"name": field.name, "kind": field.kind, "shape": field.shape, "dtype": field.dtype} for field in fields]
    return json.dumps({"version": _VERSION, "fields": rows, "classes": classes}, indent=1)


def read_table(text: str | bytes, where: str) -> tuple[tuple[Field, ...], tuple[str, ...] | None]:
    try:
        table = json.loads(text)
        if table["version"] != _VERSION:
            raise ValueError(f"it is of version {table['version']}")
        fields = checked_fields([_field(row) for row in table["fields"]])
        classes = table["classes"]
        if classes is not None and not all(isinstance(name, str) for name in classes):
            raise TypeError("classes are not names")
        return fields, None if classes is None else tuple(classes)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TopoutError(
            f"The table of fields in {where} cannot be read.",
            why=f"{type(error).__name__}: {error}",
            do="remove it to have the fields recognised by their content, or unpack again",
        ) from error


def _field(row: dict[str, object]) -> Field:
    name, kind, shape, dtype = row["name"], row["kind"], row["shape"], row["dtype"]
    if not isinstance(name, str) or kind not in KINDS or not (dtype is None or isinstance(dtype, str)):
        raise ValueError(f"{row} is not a field")
    if shape is not None and not (isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)):
        raise ValueError(f"{shape} is not a shape")
    return Field(name=name, kind=str(kind), shape=None if shape is None else tuple(shape), dtype=dtype)
