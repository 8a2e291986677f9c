"""Tables that centres have published, each computed again; one file a table, its name is the table's."""

from collections.abc import Iterator
from importlib import import_module
from importlib.resources import files

from topout.study.published.table import Table


def names() -> list[str]:
    found = files("topout.study.published").iterdir()
    return sorted(
        name.removesuffix(".py").replace("_", "-")
        for name in (entry.name for entry in found)
        if name.endswith(".py") and name not in ("__init__.py", "table.py")
    )


def tables(wanted: list[str]) -> Iterator[Table]:
    for name in wanted:
        module = import_module(f"topout.study.published.{name.replace('-', '_')}")
        yield module.table()
