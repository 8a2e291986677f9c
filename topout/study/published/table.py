"""What a centre has published beside what the model says, row by row."""

from dataclasses import dataclass, field

from topout.schema.counted import counted
from topout.study.description import read_job, read_system
from topout.study.fit import Machine


@dataclass(frozen=True, kw_only=True)
class Row:
    what: str
    published: float | None
    predicted: float | None
    """None where there is nothing to predict from."""
    is_calibrated: bool = False
    """Whether the model has seen this row; its error then says nothing."""

    @property
    def error(self) -> float | None:
        if not self.published or self.predicted is None:
            return None
        return self.predicted / self.published - 1


@dataclass(frozen=True, kw_only=True)
class Table:
    name: str
    title: str
    source: str
    unit: str
    rows: list[Row]
    parameters: list[str] = field(default_factory=list)
    """What was fitted, with its value."""
    notes: list[str] = field(default_factory=list)


def machine(job: str, system: str) -> Machine:
    return Machine(read_job(job).value, read_system(system).value)


def predicted_rows(found: Machine, points: dict[int, float], calibrated: set[int]) -> list[Row]:
    return [
        Row(what=f"{counted(nodes, 'node')}", published=published, predicted=found.samples_per_s(nodes),
            is_calibrated=nodes in calibrated)
        for nodes, published in points.items()
    ]  # fmt: skip
