"""What one rank finds wrong ends all of them with an error, before any waits for it in a collective.

Not for what every rank finds out alike by itself: each call is a small collective that all ranks must make.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from topout.schema.errors import ExitCode, TopoutError
from topout.train.exchange import gather
from topout.train.place import Place

Made = TypeVar("Made")


def together(make: Callable[[], Made], place: Place, can_fail_alone: bool = True) -> Made:
    """What `make` returns; where it failed on a rank, that one raises its own error and the others name the rank."""
    if place.world_size == 1 or not can_fail_alone:
        return make()
    made, failure = [], None
    try:
        made.append(make())
    except Exception as error:
        failure = error
    raise_together(failure, place)
    return made[0]


def raise_together(failure: Exception | None, place: Place) -> None:
    """On all ranks if on any."""
    said = gather(None if failure is None else _said(failure), place)
    if failure is not None:
        raise failure
    for rank, text in enumerate(said):
        if text is not None:
            raise TopoutError(
                f"Rank {rank} failed: {text}",
                why="Ranks work together; this one stopped because that one did.",
                do=f"look at what rank {rank} says above its error",
                exit_code=ExitCode.JOB_FAILED,
            )


def equal_everywhere(
    facts: Mapping[str, Any], place: Place, why_and_do: tuple[str, str], *, checksums: Collection[str] = ()
) -> None:
    """Raises on all ranks, naming the first rank and the facts in which it differs from rank 0.

    `checksums` are those whose values say nothing to a person.
    """
    why, do = why_and_do
    first, *others = gather(dict(facts), place)
    for rank, other in enumerate(others, start=1):
        different = [name for name in first if other.get(name) != first[name]]
        if different:
            listed = ", ".join(
                f"another {name} than rank 0"
                if name in checksums
                else f"{name} {other.get(name)} where rank 0 has {first[name]}"
                for name in different
            )
            raise TopoutError(f"Rank {rank} has {listed}.", why=why, do=do)


def _said(error: Exception) -> str:
    if isinstance(error, TopoutError):
        return error.problem
    return f"{type(error).__name__}: {error}"
