"""Taps saves: Keras' models and weights (ModelCheckpoint and BackupAndRestore end there), and tf.train.Checkpoint."""

import functools
from types import ModuleType
from typing import Any

from topout.record.keras_taps.watch import Watch
from topout.schema.event import Kind

_FUNCTIONS = ("save_model", "save_weights")
_METHODS = ("save", "write")


def install(module: ModuleType, watch: Watch) -> None:
    for name in _FUNCTIONS:
        if hasattr(module, name):
            setattr(module, name, _saving(getattr(module, name), name, watch))
    checkpoint: Any = getattr(module, "Checkpoint", None)
    for name in _METHODS if checkpoint is not None else ():
        setattr(checkpoint, name, _saving(getattr(checkpoint, name), f"checkpoint_{name}", watch))


def _saving(original: Any, name: str, watch: Watch) -> Any:
    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        with watch.apart(Kind.CHECKPOINT, name):
            return original(*args, **kwargs)

    return save
