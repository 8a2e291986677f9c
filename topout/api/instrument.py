"""Marks for scripts that want to say more than the taps can see. Outside `topout run` they do nothing.

Not needed for ordinary torch loops: steps, input, backward, optimizer, evaluation and checkpoints are seen without
them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from topout.record.clock import now_ns
from topout.record.recorder import current
from topout.record.turns import RehearsalOver
from topout.schema.event import NOT_GIVEN, Kind

_PHASES = {"input": Kind.INPUT, "copy": Kind.COPY, "evaluation": Kind.EVALUATION, "checkpoint": Kind.CHECKPOINT}


def step() -> None:
    """Ends a step. Once called, this defines the steps; optimizers no longer do. The last of `--steps` ends the run."""
    recorder = current()
    if recorder is not None:
        end_ns = now_ns()
        recorder.begin_training(end_ns)
        recorder.end_step(end_ns, by_hand=True)
        if recorder.num_steps == 2:  # as with an optimizer: by then a loader has handed out batches
            recorder.fact(**getattr(recorder.feeding, "_topout_facts", {}))
        asked = recorder.settings.steps
        if asked is not None and recorder.num_steps >= asked and recorder.is_of_rank:
            raise RehearsalOver(0)


@contextmanager
def span(name: str) -> Iterator[None]:
    """Names a stretch of the script; `input`, `copy`, `evaluation` and `checkpoint` count as those phases."""
    recorder = current()
    if recorder is None or recorder.settings.leaves_out(name):
        yield
        return
    start_ns = now_ns()
    try:
        yield
    finally:
        recorder.span(recorder.code(_PHASES.get(name, Kind.SPAN), name), start_ns)


def count(name: str, n: int = 1) -> None:
    """Counts something: samples, tokens, cache misses. The report shows the total over ranks and the rate."""
    recorder = current()
    if recorder is not None and not recorder.settings.leaves_out(name):
        recorder.emit((recorder.code(Kind.COUNT, name), now_ns(), 0, int(n), NOT_GIVEN))
