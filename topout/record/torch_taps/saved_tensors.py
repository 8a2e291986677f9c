"""Notes the use of saved-tensor hooks (checkpointing, offloading), which the FLOP count must then leave alone."""

import functools
from types import ModuleType
from typing import Any

from topout.record.recorder import Recorder


def install(module: ModuleType, recorder: Recorder) -> None:
    original = module.saved_tensors_hooks.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        recorder.unpacks_saved_tensors = True
        original(self, *args, **kwargs)

    module.saved_tensors_hooks.__init__ = init
