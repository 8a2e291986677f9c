"""Notes the use of `torch.nn.DataParallel`, which one process drives; DistributedDataParallel is what scales."""

import functools
from types import ModuleType
from typing import Any

from topout.record.recorder import Recorder


def install(module: ModuleType, recorder: Recorder) -> None:
    original = module.DataParallel.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        # with one GPU or none it calls the model as it is
        if len(self.device_ids) > 1:
            recorder.fact(uses_data_parallel=True)

    module.DataParallel.__init__ = init
