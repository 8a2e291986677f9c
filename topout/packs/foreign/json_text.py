"""JSON as bytes in other formats: any text goes through, and what does not parse is a ValueError, whatever it is.

Not for topout's own files: they are read by msgspec into types.
"""

import json
from typing import Any


def write_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogateescape")


def read_json(data: bytes | memoryview) -> Any:
    try:
        return json.loads(bytes(data).decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its JSON cannot be read: {error}") from error
