"""Notes the use of `torch.nn.DataParallel`, which one process drives; DistributedDataParallel is what scales."""

import functools
from types import ModuleType
from typing import Any

from topout.record.recorder import Recorder


def install(module: ModuleType, recorder: Recorder) -> None:
    original = module.DataParallel.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        recorder.fact(uses_data_parallel=True)
        original(self, *args, **kwargs)

    module.DataParallel.__init__ = init
