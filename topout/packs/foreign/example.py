"""tf.train.Example, read and written by hand: a map from names to lists of bytes, of floats or of integers.

    Example { Features features = 1 }   Features { map<string, Feature> feature = 1 }
    Feature { BytesList = 1 | FloatList = 2 | Int64List = 3 }, each `repeated value = 1`, numbers packed

Not a protobuf library: SequenceExample is refused, since its lists of lists have no field to go to.
Reference: Protocol Buffers encoding; tensorflow/core/example/feature.proto.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

Feature = list[bytes] | npt.NDArray[np.int64] | npt.NDArray[np.float32]
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10


class ExampleError(ValueError):
    """The bytes say something else, or stop in the middle."""


def read_example(data: bytes | memoryview) -> dict[str, Feature]:
    features: dict[str, Feature] = {}
    for number, value in _messages(memoryview(data)):
        if number == 2:
            raise ExampleError("it is a SequenceExample, or no Example at all")
        if number == 1:
            for inner, entry in _messages(value):
                if inner == 1:
                    name, feature = _entry(entry)
                    if feature is not None:
                        features[name] = feature
    return features


def first_name(data: bytes | memoryview, key: str) -> str | None:
    """The value of feature `key` if it stands first; the bytes may be the record's beginning only."""
    try:
        position = 0
        view = memoryview(data)
        for _ in range(2):  # into Features, then into its first entry
            tag, position = _varint(view, position)
            if tag != (1 << 3 | _BYTES):
                return None
            length, position = _varint(view, position)
        name, feature = _entry(_slice(view, position, length))
    except ExampleError:
        return None
    if name != key or not isinstance(feature, list) or len(feature) != 1:
        return None
    return feature[0].decode("utf-8", "surrogateescape")


def write_example(features: Mapping[str, Feature]) -> bytes:
    """Entries keep the mapping's order."""
    entries = b""
    for name, feature in features.items():
        entry = _field(1, name.encode("utf-8", "surrogateescape")) + _field(2, _write_feature(feature))
        entries += _field(1, entry)
    return _field(1, entries)


def _write_feature(feature: Feature) -> bytes:
    if isinstance(feature, list):
        return _field(1, b"".join(_field(1, value) for value in feature))
    if feature.dtype == np.float32:
        return _field(2, _field(1, feature.astype("<f4").tobytes()))
    return _field(3, _field(1, b"".join(_write_varint(int(value) & (2**64 - 1)) for value in feature)))


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | _BYTES]) + _write_varint(len(data)) + data


def _write_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _entry(data: memoryview) -> tuple[str, Feature | None]:
    name, feature = "", None
    for number, value in _messages(data):
        if number == 1:
            name = bytes(value).decode("utf-8", "surrogateescape")
        elif number == 2:
            feature = _feature(value)
    return name, feature


def _feature(data: memoryview) -> Feature | None:
    feature: Feature | None = None
    for number, value in _messages(data):
        if number == 1:
            feature = [bytes(item) for inner, item in _messages(value) if inner == 1]
        elif number == 2:
            feature = _floats(value)
        elif number == 3:
            feature = _integers(value)
    return feature


def _floats(data: memoryview) -> npt.NDArray[np.float32]:
    numbers = [value for number, wire, value in _fields(data) if number == 1 and wire in (_BYTES, _FIXED32)]
    packed = b"".join(map(bytes, numbers))
    if len(packed) % 4:
        raise ExampleError("a list of floats ends within a float")
    return np.frombuffer(packed, "<f4").astype(np.float32, copy=False)


def _integers(data: memoryview) -> npt.NDArray[np.int64]:
    packed = b"".join(
        bytes(value) for number, wire, value in _fields(data) if number == 1 and wire in (_BYTES, _VARINT)
    )
    return _packed_varints(np.frombuffer(packed, np.uint8))


def _packed_varints(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    ends = np.flatnonzero(packed < 0x80)
    if len(packed) and (not len(ends) or ends[-1] != len(packed) - 1):
        raise ExampleError("a list of integers ends within an integer")
    starts = np.concatenate(([0], ends[:-1] + 1)).astype(np.int64) if len(ends) else ends
    lengths = ends - starts + 1
    if len(lengths) and lengths.max() > _MAX_VARINT_BYTES:
        raise ExampleError("an integer is longer than 64 bits")
    values = np.zeros(len(ends), np.uint64)
    for place in range(int(lengths.max()) if len(lengths) else 0):
        reaches = lengths > place
        digits = (packed[starts[reaches] + place] & 0x7F).astype(np.uint64)
        values[reaches] |= digits << np.uint64(7 * place)
    return values.view(np.int64)


def _messages(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    for number, wire, value in _fields(data):
        if wire == _BYTES:
            yield number, value


def _fields(data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Field number, wire type and the value's bytes, for a varint those of its digits."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        wire = tag & 7
        if wire == _VARINT:
            _, end = _varint(data, position)
            length = end - position
        elif wire == _BYTES:
            length, position = _varint(data, position)
        elif wire in (_FIXED32, _FIXED64):
            length = 4 if wire == _FIXED32 else 8
        else:
            raise ExampleError(f"wire type {wire} is unknown")
        yield tag >> 3, wire, _slice(data, position, length)
        position += length


def _slice(data: memoryview, start: int, length: int) -> memoryview:
    if start + length > len(data):
        raise ExampleError("it stops in the middle")
    return data[start : start + length]


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for place in range(_MAX_VARINT_BYTES):
        if position >= len(data):
            raise ExampleError("it stops in the middle")
        digit = data[position]
        position += 1
        value |= (digit & 0x7F) << 7 * place
        if digit < 0x80:
            return value, position
    raise ExampleError("a number is longer than 64 bits")
