"""The phases of a step as the page shows them: one colour and one explanation each, the same everywhere."""

from topout.schema.measures import PHASES

MEANING = {
    "input": "waiting for the next batch",
    "copy": "copies from host to device",
    "forward": "the forward pass",
    "backward": "the backward pass, without exposed communication",
    "bubble": "waiting for a neighbouring stage of the pipeline",
    "tensor": "waiting for tensor-parallel peers, inside forward and backward",
    "wait": "waiting for a rank that is late",
    "transfer": "moving bytes between ranks with nothing to hide it",
    "optimizer": "the optimizer's step",
    "evaluation": "evaluating instead of training",
    "checkpoint": "saving state to storage",
    "other": "host code that no recorded row explains",
}


def colour_class(phase: str) -> str:
    """A class of page.css; a phase this page does not know is drawn as `other`, never as an unchecked class name."""
    return f"p-{phase if phase in PHASES else 'other'}"


def legend(phases: list[str], key: str) -> str:
    items = "".join(f'<li><i class="{colour_class(phase)}"></i>{phase}</li>' for phase in phases if phase in PHASES)
    return f'<ul class="legend" id="{key}">{items}</ul>'


def in_order(shares: dict[str, float]) -> list[tuple[str, float]]:
    """The phases that took any time, in the order of a step."""
    return [(phase, shares[phase]) for phase in PHASES if shares.get(phase, 0.0) > 0]
