"""The gradient noise scale in a sentence, the same in the terminal and on the page.

Not advice by itself: the caution goes with it wherever it stands.
"""

from topout.report import figures
from topout.schema.measures import NoiseScale

CAUTION = (
    "Batches far beyond it bring little; where we checked, the critical batch was 3 to 5 times larger: "
    "topout.probe_batch measures it."
)


def noise_sentence(found: NoiseScale) -> str:
    """`210 (150 to 300); this run's batch is 128`."""
    batch = f"this run's batch is {found.batch_size:,}"
    if found.value is None or found.high is None:
        low = figures.amount(_rounded(found.low))
        return f"above {low}, no upper limit from {found.num_samples} steps; {batch}"
    moving = ", moving more than threefold within the window" if found.has_drifted else ""
    low, value, high = (figures.amount(_rounded(number)) for number in (found.low, found.value, found.high))
    return f"{value} ({low} to {high}){moving}; {batch}"


def _rounded(number: float) -> float:
    """Two digits: the interval says how little the third would mean."""
    return float(f"{number:.2g}") if number > 0 else 0.0
