"""Taps tf.data's iterators: each batch that a train function or the script asks for.

Inside a traced train function the asking is stamped in its graph; eagerly it is timed here. Other graphs (an
evaluation, a function of the script) are left as they are.
"""

import functools
from importlib import import_module
from types import ModuleType
from typing import Any

from topout.record.clock import now_ns
from topout.record.keras_taps.graph_stamps import GraphStamps
from topout.record.keras_taps.phases import num_samples
from topout.record.keras_taps.watch import Watch

_ASKING = {
    "OwnedIterator": ("_next_internal", "get_next_as_optional"),
    "OwnedMultiDeviceIterator": ("get_next", "get_next_as_optional"),
}
_MAKING = {"OwnedIterator": "_create_iterator", "OwnedMultiDeviceIterator": "__init__"}
_UNSTAMPED = ("ParameterServer", "TPU")
"""Strategies whose train function runs in another process than the one that traces it."""


def install(module: ModuleType, watch: Watch) -> None:
    for class_name, method_names in _ASKING.items():
        iterator_class: Any = getattr(module, class_name, None)
        if iterator_class is not None:
            for name in method_names:
                setattr(iterator_class, name, _tapped(getattr(iterator_class, name), watch))
            making = _MAKING[class_name]
            setattr(iterator_class, making, _making(getattr(iterator_class, making), watch))
    if hasattr(module, "Optional"):
        _tap_step_end(module.Optional, watch)


def _making(original: Any, watch: Watch) -> Any:
    """Starting an iterator, which Keras does for every epoch, is waiting for input, too."""

    def make(*args: Any, **kwargs: Any) -> Any:
        if watch.is_asking or watch.is_apart or not watch.is_fitting or not _is_eager():
            return original(*args, **kwargs)
        watch.is_asking = True
        start_ns = now_ns()
        try:
            return original(*args, **kwargs)
        finally:
            watch.is_asking = False
            watch.started_iterator(start_ns)

    return _unconverted(make, original)


def _tapped(original: Any, watch: Watch) -> Any:
    def ask(self: Any, *args: Any, **kwargs: Any) -> Any:
        if watch.is_asking or watch.is_apart or not (watch.is_executing or watch.feeds_by_hand):
            return original(self, *args, **kwargs)
        watch.is_asking = True
        try:
            return _watched(functools.partial(original, self, *args, **kwargs), watch)
        finally:
            watch.is_asking = False

    return _unconverted(ask, original)


def _watched(ask: Any, watch: Watch) -> Any:
    if _is_eager():
        start_ns = now_ns()
        batch = ask()
        watch.pulled(start_ns, num_samples(batch))
        return batch
    stamps = watch.recorder.guard(_stamps_for, watch)
    if stamps is None:
        return ask()
    return stamps.around(ask, functools.partial(_note, watch))


def _stamps_for(watch: Watch) -> GraphStamps | None:
    if not watch.is_executing:
        return None
    if _runs_here():
        return watch.make_stamps()
    watch.recorder.note("waiting for input is part of the step: it happens in another process than this one")
    return None


def _tap_step_end(optional: Any, watch: Watch) -> None:
    """Keras 3 wraps each step's outputs into an optional: the one place in its graph where a step is seen to end."""
    original = optional.from_value

    def from_value(value: Any) -> Any:
        result = original(value)
        if watch.has_several_steps and watch.is_executing and watch.stamps is not None and not _is_eager():
            watch.recorder.guard(watch.stamps.step_ended, value)
        return result

    optional.from_value = staticmethod(_unconverted(from_value, original))


def _unconverted(wrapper: Any, original: Any) -> Any:
    """AutoGraph rewrites the functions it meets, unless they bear this mark; TensorFlow's own it leaves alone."""
    functools.update_wrapper(wrapper, original)
    wrapper.autograph_info__ = {}
    return wrapper


def _is_eager() -> bool:
    context: Any = import_module("tensorflow.python.eager.context")
    return bool(context.executing_eagerly())


def _runs_here() -> bool:
    distribute: Any = import_module("tensorflow.python.distribute.distribute_lib")
    return not type(distribute.get_strategy()).__name__.startswith(_UNSTAMPED)


def _note(watch: Watch, error: Exception) -> None:
    watch.recorder.note(f"waiting for input is part of the step: {type(error).__name__}: {error}")
