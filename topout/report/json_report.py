"""`analysis.json`: every number of an analysis, versioned, for machines and for reading later.

`None` is written as null; NaN and infinity, which JSON does not have, become null too. Its schema is written by
`python -m topout.report.json_report > docs/analysis.schema.json`, and a test keeps that current. Not for people: see
`text` and `html`.
"""

import inspect
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import msgspec

from topout.schema.analysis import Analysis
from topout.schema.errors import TopoutError
from topout.schema.measures import ANALYSIS_VERSION
from topout.schema.run_folder import TO_READ_NEWER, RunFolder, write_whole


def to_json(analysis: Analysis) -> str:
    """Keys in the order of the schema, indented, with a newline at the end."""
    return encode(analysis)


def encode(thing: Any) -> str:
    """Any dataclass of topout as JSON. A byte of a path that is not UTF-8 is spelled out: 0xff as `\\udcff`."""
    try:
        data = msgspec.json.encode(thing, enc_hook=_plain)
    except UnicodeEncodeError:
        data = msgspec.json.encode(_spelled(msgspec.to_builtins(thing, enc_hook=_plain)))
    return msgspec.json.format(data, indent=2).decode() + "\n"


def write(analysis: Analysis, folder: RunFolder) -> Path:
    """Replaces `analysis.json` of the run, whole or not at all."""
    write_whole(folder.analysis_json, to_json(analysis))
    return folder.analysis_json


def read(path: Path) -> Analysis:
    """The analysis in a file; one of a newer version is an error and not a guess."""
    try:
        data = path.read_bytes()
        version = version_of(data)
        if version > ANALYSIS_VERSION:
            raise TopoutError(
                f"{path} was written by a newer topout.",
                why=f"its format is version {version}, this topout reads up to {ANALYSIS_VERSION}",
                do=TO_READ_NEWER,
            )
        return msgspec.json.decode(data, type=Analysis)
    except OSError as error:
        raise TopoutError(
            f"{path} cannot be read.", why=error.strerror or str(error), do=f"{_analyze(path)}   writes it"
        ) from error
    except msgspec.MsgspecError as error:
        raise TopoutError(
            f"{path} is not an analysis.", why=str(error), do=f"{_analyze(path)}   writes it anew"
        ) from error


def _analyze(path: Path) -> str:
    return f"topout analyze {shlex.quote(str(path.parent))}"


def version_of(data: bytes) -> int:
    return msgspec.json.decode(data, type=_Versioned).version


def json_schema() -> str:
    """The schema of analysis.json, generated from the dataclasses."""
    return json.dumps(_dedented(msgspec.json.schema(Analysis)), indent=2) + "\n"


def _dedented(schema: Any) -> Any:
    """Python from 3.13 on takes the indentation out of docstrings by itself."""
    if isinstance(schema, dict):
        return {
            name: inspect.cleandoc(value) if name == "description" and isinstance(value, str) else _dedented(value)
            for name, value in schema.items()
        }
    return [_dedented(item) for item in schema] if isinstance(schema, list | tuple) else schema


class _Versioned(msgspec.Struct):
    version: int


def _spelled(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_spelled(key): _spelled(item) for key, item in value.items()}
    return [_spelled(item) for item in value] if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    # numpy's scalars know how to become Python's; nothing else gets here
    if hasattr(value, "item"):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} is not JSON")


if __name__ == "__main__":
    sys.stdout.write(json_schema())
