"""Features of a tf.train.Example as typed fields, and back.

TFRecord has bytes, float32 and int64 and nothing else. So arrays are three features (`x` their bytes, little-endian,
`x/shape`, `x/dtype`), and floats that float32 cannot hold are eight bytes (`tf.io.decode_raw(x, tf.float64)`).
"""

import struct
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from topout.packs.fields import DTYPES, Field, Sample, Value
from topout.packs.foreign.columns import check_columns
from topout.packs.foreign.example import Feature
from topout.packs.foreign.json_text import read_json, write_json
from topout.packs.foreign.signature import shared_kind

NAME = "__key__"
"""The feature with a sample's name; ours stands first in the record."""
_SHAPE, _DTYPE = "/shape", "/dtype"


def infer_fields(examples: Sequence[Mapping[str, Feature]], columns: Sequence[str] | None) -> tuple[Field, ...]:
    """The fields, judged by some samples, or those in `columns`. Raises ValueError for what no field can hold."""
    names = {name for example in examples for name in example} - {NAME}
    arrays = {name for name in names if {name + _SHAPE, name + _DTYPE} <= names}
    names -= {name + part for name in arrays for part in (_SHAPE, _DTYPE)}
    check_columns(sorted(names), columns)
    fields = []
    for name in sorted(names if columns is None else names & set(columns)):
        found = [example[name] for example in examples if name in example]
        fields.append(_array_field(name, examples) if name in arrays else _field(name, found, len(examples)))
    return tuple(fields)


def sample_of(fields: Sequence[Field], features: Mapping[str, Feature], *, is_ours: bool) -> Sample:
    """Raises ValueError when the features do not hold these fields. `is_ours`: written by `features_of`."""
    return {field.name: _value(field, features, is_ours) for field in fields}


def feature_names(field: Field) -> list[str]:
    """Of the features that `features_of` makes of it."""
    return [field.name, *([field.name + _SHAPE, field.name + _DTYPE] if field.kind == "array" else [])]


def features_of(fields: Sequence[Field], sample: Sample, doubles: Collection[str]) -> dict[str, Feature]:
    """`doubles` are the float fields that float32 cannot hold."""
    features: dict[str, Feature] = {}
    for field in fields:
        value = sample[field.name]
        if field.kind == "int":
            features[field.name] = np.array([value], np.int64)
        elif field.kind == "float":
            is_double = field.name in doubles
            features[field.name] = [struct.pack("<d", value)] if is_double else np.array([value], np.float32)
        elif field.kind == "array":
            array = np.asarray(value)
            features[field.name] = [array.astype(array.dtype.newbyteorder("<")).tobytes()]
            features[field.name + _SHAPE] = np.array(array.shape, np.int64)
            features[field.name + _DTYPE] = [array.dtype.newbyteorder("<").str.encode()]
        elif field.kind == "str":
            features[field.name] = [value.encode("utf-8", "surrogateescape")]
        elif field.kind == "json":
            features[field.name] = [write_json(value)]
        else:
            features[field.name] = [bytes(value)]
    return features


def _field(name: str, found: Sequence[Feature], num_examples: int) -> Field:
    lengths = {len(feature) for feature in found}
    is_everywhere = len(found) == num_examples
    # an empty list has the type it happened to be written with
    found = [feature for feature in found if len(feature)]
    if not found:
        raise ValueError(f"feature {name!r} is empty wherever it was looked at")
    if all(isinstance(feature, list) for feature in found):
        heads = [value for feature in found if isinstance(feature, list) for value in feature]
        if lengths == {1} and is_everywhere:
            return Field(name=name, kind=shared_kind(heads))
        if all(_is_text(value) for value in heads):
            return Field(name=name, kind="json")
        raise ValueError(f"feature {name!r} has several byte strings, or none, in one sample")
    types = {feature.dtype for feature in found if not isinstance(feature, list)}
    if len(types) > 1 or any(isinstance(feature, list) for feature in found):
        raise ValueError(f"feature {name!r} changes its type from record to record")
    dtype = types.pop()
    if lengths == {1} and is_everywhere:
        return Field(name=name, kind="int" if dtype == np.int64 else "float")
    shape = (lengths.pop(),) if len(lengths) == 1 and is_everywhere else None
    return Field(name=name, kind="array", shape=shape, dtype=dtype.newbyteorder("<").str)


def _array_field(name: str, examples: Sequence[Mapping[str, Feature]]) -> Field:
    shapes = {tuple(_shape(example, name)) for example in examples}
    dtypes = {_dtype(example, name) for example in examples}
    return Field(
        name=name,
        kind="array",
        shape=shapes.pop() if len(shapes) == 1 else None,
        dtype=dtypes.pop() if len(dtypes) == 1 else None,
    )


def _value(field: Field, features: Mapping[str, Feature], is_ours: bool) -> Value:
    feature = features.get(field.name)
    if field.kind == "array":
        return _array(field, features, feature)
    if field.kind == "json" and not is_ours:
        return [] if feature is None else [_text(value) for value in feature]
    if feature is None or len(feature) != 1:
        number = "no" if feature is None else len(feature)
        raise ValueError(f"feature {field.name!r} has {number} values instead of one")
    if isinstance(feature, list):
        return _from_bytes(field, feature[0])
    if field.is_scalar and (field.kind == "float" or feature.dtype == np.int64):
        return feature[0].item()
    raise ValueError(f"feature {field.name!r} is a number, not {field.kind}")


def _from_bytes(field: Field, value: bytes) -> Value:
    if field.kind == "str":
        return value.decode("utf-8", "surrogateescape")
    if field.kind == "json":
        return read_json(value)
    if field.kind == "float" and len(value) == 8:
        return struct.unpack("<d", value)[0]
    if field.is_scalar:
        raise ValueError(f"feature {field.name!r} is bytes, not {field.kind}")
    return value


def _array(field: Field, features: Mapping[str, Feature], feature: Feature | None) -> npt.NDArray[Any]:
    if (feature is None or not len(feature)) and field.shape is None and field.dtype is not None:
        return np.empty(0, np.dtype(field.dtype))
    if feature is None:
        raise ValueError(f"feature {field.name!r} is missing")
    if not isinstance(feature, list):
        return feature
    shape, dtype = _shape(features, field.name), np.dtype(_dtype(features, field.name))
    if len(feature) != 1 or len(feature[0]) != int(np.prod(shape, dtype=object)) * dtype.itemsize:
        raise ValueError(f"feature {field.name!r} does not have the bytes its shape asks for")
    return np.frombuffer(feature[0], dtype).reshape(shape)


def _shape(features: Mapping[str, Feature], name: str) -> list[int]:
    shape = features.get(name + _SHAPE)
    if shape is None or isinstance(shape, list) or shape.dtype != np.int64 or (len(shape) and shape.min() < 0):
        raise ValueError(f"feature {name + _SHAPE!r} is not a shape")
    return [int(length) for length in shape]


def _dtype(features: Mapping[str, Feature], name: str) -> str:
    dtype = features.get(name + _DTYPE)
    text = dtype[0].decode("ascii", "replace") if isinstance(dtype, list) and len(dtype) == 1 else ""
    if text not in DTYPES:
        raise ValueError(f"feature {name + _DTYPE!r} is not a type of items")
    return text


def _text(value: object) -> str:
    if not isinstance(value, bytes):
        raise ValueError("a list of texts holds numbers")
    return value.decode("utf-8", "surrogateescape")


def _is_text(value: bytes) -> bool:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
