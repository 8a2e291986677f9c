"""How far training has come in its data: what a checkpoint keeps of a loader.

Seed, epoch and position say everything, since the order is a function of them. World size, batch size, threads and
the policy for the last batch are not part of it and may change at a resume; the data may not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from topout.schema.errors import TopoutError

STATE_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Position:
    """The next position that no rank has loaded."""

    seed: int
    epoch: int = 0
    position: int = 0
    data: tuple[str, ...] = ()
    """The packs' identities, to notice a resume on other data."""

    def state(self) -> dict[str, Any]:
        """Plain numbers and strings: fit for JSON and for any checkpoint format."""
        return {
            "version": STATE_VERSION,
            "seed": self.seed,
            "epoch": self.epoch,
            "position": self.position,
            "data": list(self.data),
        }


def read_state(state: Mapping[str, Any], data: tuple[str, ...], num_positions: int) -> Position:
    """The position in `state`, checked against the data at hand."""
    if not isinstance(state, Mapping):
        raise TopoutError(
            f"{state!r} is no loader's state.",
            why="It is what state_dict() of a loader returned, a dict.",
            do="pass the part of the checkpoint that the loader's state was saved in; without one leave the call out",
        )
    if state.get("version") != STATE_VERSION:
        raise TopoutError(
            f"The loader state has version {state.get('version')!r}; this topout reads {STATE_VERSION}.",
            why="It was saved by another version of topout, or it is not a loader's state.",
            do="resume with the topout that saved it, or start the epoch anew with set_epoch",
        )
    numbers: dict[str, Any] = {name: state.get(name) for name in ("seed", "epoch", "position")}
    wrong = [name for name, value in numbers.items() if not isinstance(value, int)]
    if not wrong and (numbers["epoch"] < 0 or not 0 <= numbers["position"] <= num_positions):
        wrong = ["epoch", "position"]
    saved = state.get("data", ())
    if not isinstance(saved, list | tuple):
        wrong.append("data")
    if wrong:
        raise TopoutError(
            f"The loader state has no usable {' and '.join(wrong)}.",
            why=f"Found {numbers!r} and data {saved!r}; the data has {num_positions} positions an epoch.",
            do="pass what state_dict() returned, unchanged",
        )
    if saved and tuple(saved) != data:
        raise TopoutError(
            "The loader state belongs to other data.",
            why=f"It was saved with {_listed(tuple(saved))}; this loader has {_listed(data)}.",
            do="open the same packs in the same order, or start anew with set_epoch",
        )
    return Position(**{name: int(value) for name, value in numbers.items()}, data=data)


def _listed(packs: tuple[str, ...]) -> str:
    return ("pack " if len(packs) == 1 else "packs ") + ", ".join(pack[:12] for pack in packs)
