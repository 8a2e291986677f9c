"""Taps Keras' optimizers where they run eagerly, that is on torch: its own hooks hear only of torch.optim.

On TensorFlow and JAX an optimizer is part of the compiled step and is not seen.
"""

import functools
from types import ModuleType
from typing import Any

from topout.record.clock import now_ns
from topout.record.keras_taps.watch import Watch
from topout.schema.event import NOT_GIVEN, Kind


def install(module: ModuleType, watch: Watch) -> None:
    optimizer: Any = module.BaseOptimizer
    original = optimizer.apply
    stepped = watch.recorder.code(Kind.OPTIMIZER)

    @functools.wraps(original)
    def apply(*args: Any, **kwargs: Any) -> Any:
        if watch.sees_phases:
            return original(*args, **kwargs)
        start_ns = now_ns()
        try:
            return original(*args, **kwargs)
        finally:
            watch.recorder.span(stepped, start_ns, NOT_GIVEN, 0)

    optimizer.apply = apply
