"""How far training has come in a sharded loader's data: what a checkpoint keeps of it.

World size, batch size and workers are not part of it and may change at a resume; the data may not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from topout.schema.errors import TopoutError
from topout.train.sample_order import SampleOrder

STATE_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class LoaderPosition:
    """The next position that no rank has loaded."""

    seed: int
    epoch: int = 0
    position: int = 0
    num_positions: int
    """Of the whole epoch; 0 where only the epoch itself will show."""
    fingerprint: int | None = None
    """Of the order that a sampler drew, to notice that it draws another one after a restart."""

    def state(self) -> dict[str, Any]:
        """Plain numbers: fit for JSON and for any checkpoint format."""
        return {
            "version": STATE_VERSION,
            "seed": self.seed,
            "epoch": self.epoch,
            "position": self.position,
            "samples": self.num_positions,
            "order": self.fingerprint,
        }

    def check_order(self, order: SampleOrder) -> None:
        """Raises where the rest of an epoch is not the rest of the one that was begun."""
        if self.position and self.num_positions != order.num_positions:
            raise _other_data(self.num_positions, order.num_positions)
        if self.position and self.fingerprint != order.fingerprint:
            raise TopoutError(
                f"The sampler gives another order for epoch {self.epoch} than before the restart.",
                why=f"After {self.position} samples the rest of another order would repeat some and skip others.",
                do="draw from torch, numpy or random, which topout seeds for each epoch; or begin the epoch anew "
                f"with set_epoch({self.epoch + 1})",
            )


def read_position(state: Mapping[str, Any], num_positions: int) -> LoaderPosition:
    """The position in `state`, checked against the data at hand, if it is known by now how much that is."""
    version = state.get("version") if isinstance(state, Mapping) else None
    if version != STATE_VERSION:
        raise TopoutError(
            f"The loader state has version {version!r}; this topout reads {STATE_VERSION}.",
            why="It was saved by another version of topout, or it is not a loader's state.",
            do="resume with the topout that saved it, or start the epoch anew with set_epoch",
        )
    numbers: dict[str, Any] = {name: state.get(name) for name in ("seed", "epoch", "position", "samples")}
    order = state.get("order")
    wrong = [name for name, value in numbers.items() if not isinstance(value, int) or (name != "seed" and value < 0)]
    if order is not None and not isinstance(order, int):
        wrong.append("order")
    if wrong:
        raise TopoutError(
            f"The loader state has no usable {' and '.join(wrong)}.",
            why=f"Found {numbers!r}, order {order!r}.",
            do="pass what state_dict() returned, unchanged",
        )
    if 0 not in (num_positions, numbers["samples"]) and numbers["samples"] != num_positions:
        raise _other_data(numbers["samples"], num_positions)
    if numbers["position"] > numbers["samples"]:
        raise _other_data(numbers["samples"], numbers["position"])
    return LoaderPosition(
        seed=numbers["seed"],
        epoch=numbers["epoch"],
        position=numbers["position"],
        num_positions=numbers["samples"],
        fingerprint=order,
    )


def _other_data(saved: int, now: int) -> TopoutError:
    return TopoutError(
        "The loader state belongs to other data.",
        why=f"It was saved with {saved} samples an epoch; this loader has {now}.",
        do="load the same data, or start anew with set_epoch",
    )
