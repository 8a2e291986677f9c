"""Taps into an unmodified Keras script: Keras 3 on TensorFlow, JAX or torch, and Keras 2 as `tf_keras`.

Keras calls the callbacks around every train function and after every epoch, so that is where steps are seen; no
callback of ours joins the script's, since one more would keep Keras from calling them in the background. Inside the
train function everything is compiled: only the waiting for a batch can be told from the rest (`graph_stamps`). Not for
loops that call a `tf.function` of their own: those end their steps with `topout.step()`.
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
    "keras.src.callbacks.callback_list": "steps",
    "tf_keras.src.callbacks": "steps",
    "keras.src.backend.tensorflow.trainer": "phases",
    "keras.src.backend.jax.trainer": "phases",
    "keras.src.backend.torch.trainer": "phases",
    "tf_keras.src.engine.training": "phases",
    "keras.src.trainers.trainer": "results",
    "keras.src.utils.python_utils": "results",
    "keras.src.optimizers.base_optimizer": "optimizer",
    "keras.src.saving.saving_api": "saves",
    "tf_keras.src.saving.saving_api": "saves",
    "tensorflow.python.checkpoint.checkpoint": "saves",
    "tensorflow.python.data.ops.iterator_ops": "iterators",
    "tensorflow.python.data.ops.multi_device_iterator_ops": "iterators",
    "tensorflow.python.data.ops.optional_ops": "iterators",
    "keras": "facts",
    "tf_keras": "facts",
    "tensorflow": "facts",
    "jax": "facts",
}
"""Module to wait for -> file of this folder whose `install(module, watch)` taps it."""


def install(recorder: Recorder) -> None:
    watches: list[Any] = []
    callbacks: dict[str, list[Callback]] = {}
    for module_name, tap_name in TAPS.items():
        callbacks.setdefault(module_name, []).append(_installer(tap_name, recorder, watches))
    call_after_import(callbacks)


def _installer(tap_name: str, recorder: Recorder, watches: list[Any]) -> Callable[[ModuleType], None]:
    """A script without Keras pays for none of it: what the taps share is made with the first of them."""

    def tap(module: ModuleType) -> None:
        from importlib import import_module

        if not watches:
            watches.append(import_module(f"{__name__}.watch").Watch(recorder))
        import_module(f"{__name__}.{tap_name}").install(module, watches[0])

    tap.__name__ = f"the tap of Keras' {tap_name}"  # so that a note says which

    def install_tap(module: ModuleType) -> None:
        recorder.guard(tap, module)

    return install_tap
