"""The fields somebody asked for, out of those a source has.

In the source's order, whatever order they were named in, so that the same columns always make the same pack.
"""

from collections.abc import Sequence

from topout.packs.fields import Field
from topout.schema.errors import TopoutError


def chosen_fields(fields: Sequence[Field], columns: Sequence[str] | None) -> tuple[Field, ...]:
    if columns is None:
        return tuple(fields)
    check_columns([field.name for field in fields], columns)
    return tuple(field for field in fields if field.name in columns)


def check_columns(names: Sequence[str], columns: Sequence[str] | None) -> None:
    """Raises for a column that is none of those the source has."""
    unknown = sorted(set(columns or ()) - set(names))
    if unknown:
        raise TopoutError(
            f"There is no column {unknown[0]!r}.",
            why=f"the source has {', '.join(names) or 'none that can be packed'}",
            do="name some of these",
        )
