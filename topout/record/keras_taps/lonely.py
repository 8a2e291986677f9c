"""Several ranks, and a Keras script that knows of none but itself: each would train alone, and nobody would be told.

Quiet as soon as anything that could join ranks is there: a strategy of several workers, Horovod, MPI, or the
processes of JAX or torch.
"""

import sys
from typing import Any

from topout.record.keras_taps.watch import Watch
from topout.record.turns import RehearsalOver

_JOINERS = ("horovod", "mpi4py", "byteps")


def refuse_lonely_ranks(model: Any, watch: Watch) -> None:
    """Ends the script before its first step; the launcher says why."""
    recorder = watch.recorder
    if recorder.settings.world_size < 2 or recorder.num_steps or not recorder.is_of_rank:
        return
    # what cannot be found out is no reason to end somebody's training
    if recorder.guard(_is_alone, model) is True:
        recorder.tell("single-device", framework="keras")
        raise RehearsalOver(2)


def _is_alone(model: Any) -> bool:
    if any(name in sys.modules for name in _JOINERS):
        return False
    return not (_has_workers(model) or _has_jax_processes() or _has_process_group())


def _has_workers(model: Any) -> bool:
    strategy = getattr(model, "distribute_strategy", None)
    extended: Any = getattr(strategy, "extended", None)
    return extended is not None and bool(extended._in_multi_worker_mode())


def _has_jax_processes() -> bool:
    jax: Any = sys.modules.get("jax")
    return jax is not None and bool(jax.distributed.is_initialized())


def _has_process_group() -> bool:
    distributed: Any = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and bool(distributed.is_initialized())
