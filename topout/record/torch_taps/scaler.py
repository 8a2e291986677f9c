"""Taps GradScaler: a step that it skips because of an infinite gradient is still a step of the job."""

import functools
from types import ModuleType
from typing import Any

from topout.record.recorder import Recorder


def install(module: ModuleType, recorder: Recorder) -> None:
    original = module.GradScaler.step

    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        num_before = recorder.num_optimizer_steps
        result = original(self, optimizer, *args, **kwargs)
        if recorder.num_optimizer_steps == num_before and recorder.skipped_step is not None:
            recorder.skipped_step(optimizer)
        return result

    module.GradScaler.step = step
