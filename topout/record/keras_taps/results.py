"""Taps where Keras asks for numbers, after a step and after an epoch: there a device that lags behind is awaited.

Counts as computing, for that is what is waited for. On a CPU with TensorFlow nothing lags.
"""

import functools
from types import ModuleType
from typing import Any

from topout.record.clock import now_ns
from topout.record.keras_taps.watch import Watch
from topout.schema.event import Kind

_SHORTEST_NS = 200_000
"""Turning numbers into Python's takes less; nobody was waited for."""


def install(module: ModuleType, watch: Watch) -> None:
    if hasattr(module, "pythonify_logs"):
        module.pythonify_logs = _awaiting(module.pythonify_logs, watch)  # type: ignore[attr-defined]
    trainer: Any = getattr(module, "Trainer", None)
    if trainer is not None:
        _tap_epoch_end(trainer, watch)


def _awaiting(original: Any, watch: Watch) -> Any:
    awaited = watch.recorder.code(Kind.BACKWARD, "await_metrics")

    @functools.wraps(original)
    def get_numbers(*args: Any, **kwargs: Any) -> Any:
        start_ns = now_ns()
        try:
            return original(*args, **kwargs)
        finally:
            if watch.is_fitting and not watch.is_apart and now_ns() - start_ns > _SHORTEST_NS:
                watch.recorder.span(awaited, start_ns)

    return get_numbers


def _tap_epoch_end(trainer: Any, watch: Watch) -> None:
    original = _awaiting(trainer._get_metrics_result_or_logs, watch)

    @functools.wraps(original)
    def get_results(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if watch.is_fitting and not watch.is_apart:
            watch.close_step(now_ns())
        return result

    trainer._get_metrics_result_or_logs = get_results
