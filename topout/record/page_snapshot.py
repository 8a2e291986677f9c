"""What a launcher knows of a rank at one moment: the rank's status page, its times turned into ages.

Ages, not times, because hosts do not share a clock: a snapshot travels to the head of a job as a small JSON object.
"""

from __future__ import annotations

from topout.schema.light_dataclass import dataclass, names_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@dataclass(frozen=True, kw_only=True)
class Call:
    """One collective on one rank."""

    operation: str
    group: str
    """Empty, or `backend:name` as in `Position`."""
    sequence: int | None
    """Its number in its group, from 0 where the script calls it and from 1 in torch's flight recorder."""
    num_bytes: int | None
    age_s: float
    """Since it was begun."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """How far a rank has come in one process group it belongs to, as torch's flight recorder counts."""

    group: str
    """`backend:name`; torch gives a group the same name on all its ranks."""
    reached: int
    """Number of the last collective that was begun, 0 before the first."""
    completed: int
    age_s: float
    """Since either last changed."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One rank's page. None: not known, or not yet."""

    num_steps: int = 0
    step_age_s: float | None = None
    """Since the last step's end."""
    usual_step_s: float | None = None
    """Mean over all steps but the first."""
    stir_age_s: float | None = None
    """Since another sign of progress: a batch, a collective."""
    look_age_s: float | None = None
    """Since the rank last looked at itself, which it does once a second as long as its interpreter runs."""
    phase: str = ""
    """`import`, `init`, `compile`, `input`, `backward`, `collective`, `checkpoint`, `evaluation`, `ended` or empty."""
    line: str = ""
    """Innermost line of the script in its main thread: `train.py:42 in load_shard`."""
    inner: str = ""
    """Innermost line of all; empty when it is the script's."""
    place_age_s: float | None = None
    """For so long every look has found it at this line and in this phase."""
    called: Call | None = None
    """The last collective that the script itself called."""
    is_inside: bool = False
    """`called` has not returned."""
    pending: Call | None = None
    """The oldest collective that is not over, once it has lasted some seconds."""
    positions: tuple[Position, ...] = ()
    has_process_group: bool = False
    num_answered: int = 0

    @property
    def progress_age_s(self) -> float | None:
        """Since the rank last got on, by a step or otherwise."""
        ages = [age for age in (self.step_age_s, self.stir_age_s) if age is not None]
        return min(ages) if ages else None

    def to_wire(self) -> dict[str, Any]:
        """JSON-able, without what is at its default."""
        from dataclasses import asdict, fields

        plain = asdict(self)
        return {item.name: plain[item.name] for item in fields(self) if getattr(self, item.name) != item.default}

    @classmethod
    def from_wire(cls, content: dict[str, Any]) -> Snapshot:
        """Keys of another version are ignored; content of the wrong shape raises TypeError, ValueError or KeyError."""
        known = names_of(cls)
        values = {key: value for key, value in content.items() if key in known}
        for key in ("called", "pending"):
            if values.get(key) is not None:
                values[key] = Call(**values[key])
        values["positions"] = tuple(Position(**position) for position in values.get("positions", ()))
        return cls(**values)
