"""Taps pipelines of `torch.distributed.pipelining`: what a stage computes, and when it waits for its neighbours.

A schedule calls forward and backward of its stage once a micro-batch, and between them waits for activations and
gradients. Each call is one row, so what is left of a schedule's time is known and not derived. Not for pipelines
written by hand: their sends and receives have rows as the script called them.
"""

import functools
from threading import get_ident
from types import ModuleType
from typing import Any

from topout.record.clock import now_ns
from topout.record.recorder import Recorder
from topout.schema.event import NOT_GIVEN, Kind

_CHUNKS = {
    "forward_one_chunk": "forward",
    "backward_one_chunk": "backward",
    "backward_weight_one_chunk": "weight",
    "perform_reduce_grad": "reduce",
}
"""Method of a stage -> name of its rows; these are torch's own names, and a missing one is left out."""
_WAIT = "_wait_batch_p2p"
"""Where schedules wait; private. Without it, all that a schedule does not compute counts as waiting."""


def install(module: ModuleType, recorder: Recorder) -> None:
    """For both modules that it waits for: the one with the stages and the one with the schedules."""
    stage = getattr(module, "_PipelineStageBase", None)
    if module.__name__.endswith(".stage") and stage is not None:
        for method, name in _CHUNKS.items():
            if hasattr(stage, method):
                setattr(stage, method, _chunk(getattr(stage, method), name, recorder))
        return
    for kind in ("PipelineScheduleSingle", "PipelineScheduleMulti"):
        schedule = getattr(module, kind, None)
        if schedule is not None:
            schedule.step = _schedule(schedule.step, recorder)
    if hasattr(module, _WAIT):
        setattr(module, _WAIT, _waiting(getattr(module, _WAIT), recorder))


def _chunk(original: Any, name: str, recorder: Recorder) -> Any:
    ran = recorder.code(Kind.CHUNK, name)
    is_forward = name == "forward"
    phase = "forward" if is_forward else "backward"
    whole_backward = recorder.code(Kind.BACKWARD)

    @functools.wraps(original)
    def chunk(self: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.mark is not None:
            recorder.mark("bubble")
        start_ns = now_ns()
        try:
            return original(self, *args, **kwargs)
        finally:
            number = args[0] if args and isinstance(args[0], int) and name != "reduce" else NOT_GIVEN
            recorder.span(ran, start_ns, number, getattr(self, "stage_index", NOT_GIVEN))
            if not is_forward:
                # zero-bubble schedules call autograd.grad, which nobody else sees
                recorder.span(whole_backward, start_ns, NOT_GIVEN, number)
            if recorder.mark is not None:
                recorder.mark(phase)

    return chunk


def _schedule(original: Any, recorder: Recorder) -> Any:
    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        start_ns = now_ns()
        if recorder.num_steps == 0 and getattr(self, "_has_backward", False):
            recorder.begin_training(start_ns)
        try:
            return original(self, *args, **kwargs)
        finally:
            code = recorder.code(Kind.SCHEDULE, type(self).__name__)
            recorder.span(code, start_ns, _whole(self, "_n_microbatches"), _num_stages(self))

    return step


def _waiting(original: Any, recorder: Recorder) -> Any:
    waited = recorder.code(Kind.NEIGHBOUR)

    @functools.wraps(original)
    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        start_ns = now_ns()
        recorder.communicating.add(get_ident())
        try:
            return original(work, *args, **kwargs)
        finally:
            recorder.communicating.discard(get_ident())
            if work:  # the first stage has nothing to receive
                recorder.span(waited, start_ns)

    return wait


def _num_stages(schedule: Any) -> int:
    """Of the whole pipeline; both names are private to torch."""
    number = _whole(schedule, "_num_stages")
    return number if number != NOT_GIVEN else _whole(getattr(schedule, "_stage", None), "num_stages")


def _whole(owner: Any, name: str) -> int:
    value = getattr(owner, name, NOT_GIVEN)
    return value if isinstance(value, int) else NOT_GIVEN
