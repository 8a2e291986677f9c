"""Taps into an unmodified torch script: each file taps one thing, right after torch defines it.

No hooks on modules (they cost a tenth of a small step and break `fullgraph=True`), no extra iterator over a loader
(it would draw from the generator), no collective and no synchronisation of our own. A tap that cannot be placed is
noted; the rest stays in place.
"""

from __future__ import annotations

from topout.record.imports import Callback, call_after_import
from topout.record.recorder import Recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

TAPS: dict[str, str] = {
    "torch.utils.data.dataloader": "loader",
    "torchdata.stateful_dataloader.stateful_dataloader": "loader",
    "torch.optim.optimizer": "optimizer",
    "torch.amp.grad_scaler": "scaler",
    "torch.autograd": "backward",
    "torch.autograd.graph": "saved_tensors",
    "torch.nn.modules.module": "mode",
    "torch.nn.parallel.data_parallel": "data_parallel",
    "torch.multiprocessing.spawn": "spawning",
    "torch.distributed.distributed_c10d": "collectives",
    "torch.distributed._functional_collectives": "functional",
    "torch.distributed.device_mesh": "mesh",
    "torch.distributed.pipelining.stage": "pipeline",
    "torch.distributed.pipelining.schedules": "pipeline",
    "torch.serialization": "checkpoint",
    "torch.distributed.checkpoint.state_dict_saver": "checkpoint",
    "safetensors.torch": "checkpoint",
    "torch": "facts",
}
"""Module to wait for -> file of this folder whose `install(module, recorder)` taps it."""


def install(recorder: Recorder) -> None:
    callbacks: dict[str, list[Callback]] = {}
    for module_name, tap_name in TAPS.items():
        callbacks.setdefault(module_name, []).append(_installer(tap_name, recorder))
    call_after_import(callbacks)


def _installer(tap_name: str, recorder: Recorder) -> Callable[[ModuleType], None]:
    def install_tap(module: ModuleType) -> None:
        def tap() -> None:
            """Its import is guarded, too: what it needs may be missing where the script's torch is not."""
            from importlib import import_module

            found: Any = import_module(f"{__name__}.{tap_name}")
            found.install(module, recorder)

        recorder.guard(tap)

    return install_tap
