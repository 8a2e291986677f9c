"""Notes that the script starts processes of its own (`torch.multiprocessing.spawn`), whose steps nobody sees."""

import functools
from typing import Any

from topout.record.recorder import Recorder


def install(module: Any, recorder: Recorder) -> None:
    original = module.start_processes

    @functools.wraps(original)
    def start_processes(fn: Any, args: Any = (), nprocs: int = 1, *more: Any, **options: Any) -> Any:
        recorder.fact(num_spawned=nprocs)
        return original(fn, args, nprocs, *more, **options)

    module.start_processes = start_processes
