"""Estimates in the run folder: a few counter rows a sample, read without torch. Outside `topout run` it does nothing.

Rows are integers, so values stand in thousandths of a sample; `NOT_GIVEN` for an upper end that there is not.
"""

import math

from topout.record.recorder import current
from topout.schema.event import NOT_GIVEN, Kind
from topout.train.noise_scale.estimate import Estimate

THOUSANDTHS = 1000
_LARGEST = 2**62


def write(found: Estimate, step: int, at_ns: int) -> None:
    recorder = current()
    if recorder is None:
        return
    rows = {
        "noise_scale_step": step,
        "noise_scale_thousandths": _thousandths(found.value),
        "noise_scale_low_thousandths": _thousandths(found.low),
        "noise_scale_high_thousandths": _thousandths(found.high),
        "noise_scale_drifted": int(found.has_drifted),
        "noise_scale_num_samples": found.num_samples,
        "noise_scale_batch": found.batch_size,
    }
    for name, value in rows.items():
        recorder.emit((recorder.code(Kind.COUNTER, name), at_ns, 0, value, step))


def note(text: str) -> None:
    recorder = current()
    if recorder is not None:
        recorder.note(text)


def _thousandths(value: float) -> int:
    return min(round(value * THOUSANDTHS), _LARGEST) if math.isfinite(value) else NOT_GIVEN
