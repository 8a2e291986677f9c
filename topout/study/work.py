"""What is left to train, and how it grows with the batch (McCandlish et al., 2018):

steps(b)   = S (1 + B / b)        b the batch of all ranks, S steps of an unlimited batch
samples(b) = E (1 + b / B)        E = S B samples of a tiny batch, B the critical one
"""

from dataclasses import dataclass
from math import ceil, isfinite

import numpy as np

from topout.schema.errors import TopoutError
from topout.study.description import NORMAL_TENTH
from topout.study.target_loss import Target

_STEP_DIGITS = 6


@dataclass(frozen=True, kw_only=True)
class Work:
    """In samples at one batch, and how they grow with the batch."""

    samples: float
    """At `curve_batch`."""
    curve_batch: float = 0.0
    """That the samples were counted with; 0: a tiny one."""
    critical_batch: tuple[float, float, float] | None = None
    """Value, low and high of an 80 % range; None: not known."""
    samples_range: tuple[float, float] | None = None
    """80 %; None: exactly so many."""

    def samples_at(self, batch: float, critical: float | None) -> float:
        """Samples until the target: S B of them for a tiny batch, more for a large one, the known ones at the curve's.

        So a doubtful critical batch costs nothing there, and more the further away.
        """
        return self.samples if critical is None else self.samples * (critical + batch) / (critical + self.curve_batch)

    def steps_at(self, batch: float, critical: float | None) -> int:
        """Whole ones: a batch larger than what is left trains one step as any other does."""
        steps = self.samples_at(batch, critical) / batch
        if not isfinite(steps):
            raise TopoutError(
                "How many steps there are to train cannot be computed.",
                why=f"{self.samples:g} samples and a critical batch of {critical or 0:g} give no finite number.",
                do="mend --samples, --epochs or --critical-batch",
            )
        # a last digit that floats made up is no step
        return max(1, ceil(round(steps, _STEP_DIGITS)))

    @property
    def fewest_samples(self) -> float:
        """Of a tiny batch."""
        return self.samples_at(0.0, self.critical_batch and self.critical_batch[0])

    @property
    def fewest_steps(self) -> float | None:
        """Of a batch without limit."""
        return None if self.critical_batch is None else self.fewest_samples / self.critical_batch[0]

    def draw(self, random: np.random.Generator) -> "Work":
        """One that the ranges allow, without ranges; log-normal, for neither can be negative and both are wide."""
        critical = None
        if self.critical_batch is not None:
            critical = (_draw(*self.critical_batch, random),) * 3
        samples = self.samples if self.samples_range is None else _draw(self.samples, *self.samples_range, random)
        return Work(samples=samples, curve_batch=self.curve_batch, critical_batch=critical)


def to_target(target: Target, curve_batch: float | None, critical: tuple[float, float, float] | None) -> Work:
    """`curve_batch`: None: not known, and taken for tiny."""
    return Work(
        samples=target.samples,
        curve_batch=curve_batch or 0.0,
        samples_range=(target.low, target.high),
        critical_batch=critical,
    )


def _draw(value: float, low: float, high: float, random: np.random.Generator) -> float:
    deviation = random.standard_normal()
    side = np.log(high / value) if deviation > 0 else np.log(value / low)
    return float(value * np.exp(deviation * side / NORMAL_TENTH))
