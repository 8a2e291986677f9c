"""What a Keras rank knows of itself: versions, backend, strategy, how steps are compiled, how large the model is."""

from types import ModuleType
from typing import Any

from topout.record.keras_taps.watch import Watch

_UNSEEN = {
    "profile": "--profile looks into torch; in a Keras script use the TensorBoard callback's profile_batch",
    "data_share": "--data-share shortens torch's loaders; Keras' input was left whole (--steps works)",
}


def install(module: ModuleType, watch: Watch) -> None:
    watch.recorder.fact(**{f"{module.__name__}_version": str(getattr(module, "__version__", "unknown"))})


def record_model(model: Any, watch: Watch) -> None:
    """When a training begins."""
    strategy = getattr(model, "distribute_strategy", None)
    # a variable in Keras 2, whose steps follow one another anyway
    steps_per_execution = getattr(model, "steps_per_execution", None)
    watch.has_several_steps = isinstance(steps_per_execution, int) and steps_per_execution > 1
    backend = _backend(model)
    for setting, text in _UNSEEN.items() if backend != "torch" else ():
        if getattr(watch.recorder.settings, setting) is not None:
            watch.recorder.note(text)
    watch.recorder.fact(
        framework="keras",
        keras_backend=backend,
        strategy=type(strategy).__name__ if strategy is not None else None,
        num_replicas=getattr(strategy, "num_replicas_in_sync", None),
        jit_compile=getattr(model, "jit_compile", None),
        steps_per_execution=steps_per_execution if isinstance(steps_per_execution, int) else None,
        run_eagerly=bool(getattr(model, "run_eagerly", False)),
        uses_autocast=str(getattr(getattr(model, "dtype_policy", None), "name", "")).startswith("mixed_"),
    )


def record_sizes(model: Any, watch: Watch) -> None:
    """When a fit ends: by then everything is built."""
    trainable_bytes = sum(map(_num_bytes, model.trainable_variables))
    variables = getattr(model.optimizer, "variables", ())
    watch.recorder.fact(
        num_parameters=sum(map(_num_elements, model.variables)),
        parameter_bytes=sum(map(_num_bytes, model.variables)),
        gradient_bytes=trainable_bytes,
        optimizer_bytes=sum(map(_num_bytes, variables() if callable(variables) else variables)),
    )


def _backend(model: Any) -> str:
    """From where the class of the trainer is defined; Keras 2 has TensorFlow alone."""
    for parent in type(model).__mro__:
        package, _, rest = parent.__module__.partition(".src.backend.")
        if package == "keras" and rest:
            return rest.partition(".")[0]
    return "tensorflow"


def _num_elements(variable: Any) -> int:
    result = 1
    for size in variable.shape:
        result *= int(size)
    return result


def _num_bytes(variable: Any) -> int:
    from numpy import dtype

    name = variable.dtype if isinstance(variable.dtype, str) else variable.dtype.name
    return _num_elements(variable) * (2 if name == "bfloat16" else dtype(name).itemsize)
