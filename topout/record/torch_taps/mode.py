"""Taps `Module.train` and `Module.eval`: where a script leaves training for evaluation, and where it comes back."""

import functools
from types import ModuleType
from typing import Any

import torch

from topout.record.clock import now_ns
from topout.record.recorder import Recorder
from topout.schema.event import NOT_GIVEN, Kind


def install(module: ModuleType, recorder: Recorder) -> None:
    original = module.Module.train
    changed = recorder.code(Kind.MODE)
    is_inside = False

    @functools.wraps(original)
    def train(self: Any, mode: bool = True) -> Any:
        nonlocal is_inside
        # children of the module that the script switched; what is compiled may switch, but is not to be recorded
        if is_inside or torch.compiler.is_compiling():
            return original(self, mode)
        is_inside = True
        try:
            result = original(self, mode)
        finally:
            is_inside = False
        recorder.emit((changed, now_ns(), 0, int(bool(mode)), NOT_GIVEN))
        recorder.is_evaluating = not mode
        return result

    module.Module.train = train
