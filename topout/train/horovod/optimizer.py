"""`hvd.DistributedOptimizer`: the user's optimizer, whose gradients are reduced over ranks before each step.

The returned object is of a class derived from the optimizer's own, with the same parameter groups and state, so that
schedulers, `isinstance` and checkpoints see what they know.
"""

import contextlib
import functools
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist

from topout.record.clock import now_ns
from topout.record.recorder import Recorder, current
from topout.record.row_names import AWAITED
from topout.schema.counted import counted
from topout.schema.errors import TopoutError
from topout.schema.event import NOT_GIVEN, Kind
from topout.train.fusion.bucket import Reduction, averaging
from topout.train.fusion.gradients import FusedGradients
from topout.train.fusion.grouping import limits_from, split_evenly
from topout.train.horovod import operations, world
from topout.train.horovod.compressed_gradients import CompressedGradients
from topout.train.horovod.compression import Compression
from topout.train.horovod.operations import Adasum, Average
from topout.train.horovod.process_sets import ProcessSet, global_process_set

_ZERO_GRAD_RACE = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or optimizer.synchronize(). "
    "This is prohibited as it can cause a race condition."
)
_SYNCHRONIZED_TWICE = (
    "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). "
    "You may want to consider using optimizer.skip_synchronize() context if you use optimizer.synchronize()."
)
engines: WeakSet[Any] = WeakSet()
"""Of all optimizers alive, for `join`."""
_num_awaited: Counter[str] = Counter()
"""By group, for the recording."""
_told: set[str] = set()
"""What is said once a process."""


class _Distributed:
    """Goes before the optimizer's own class, so that `super()` is the user's optimizer."""

    _engine: Any
    _watch_for_unreduced: Any
    _is_synchronized: bool
    _synchronizes: bool
    backward_passes_per_step: int

    def set_backward_passes_per_step(self, passes: int) -> None:
        self.backward_passes_per_step = passes
        if self._engine is not None:
            self._engine.set_passes(passes)

    def synchronize(self) -> None:
        """Waits until the gradients are reduced, for what reads them before `step`, such as clipping."""
        if self._engine is not None:
            _await(self._engine)
        if self._watch_for_unreduced is not None:
            self._watch_for_unreduced(self)
        self._is_synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Around a `step` after a `synchronize` of one's own."""
        self._synchronizes = False
        try:
            yield
        finally:
            self._synchronizes = True

    def step(self, closure: Any = None) -> Any:
        parent: Any = super()
        if closure is not None and self._synchronizes:
            # gradients are new each time the closure has run
            return parent.step(self._reduced_after(closure))
        if self._synchronizes:
            if self._is_synchronized:
                warnings.warn(_SYNCHRONIZED_TWICE, stacklevel=2)
            if not self._is_synchronized or (self._engine is not None and self._engine.has_pending):
                self.synchronize()
        self._is_synchronized = False
        return parent.step(closure) if closure is not None else parent.step()

    def _reduced_after(self, closure: Any) -> Any:
        def run() -> Any:
            loss = closure()
            self.synchronize()
            self._is_synchronized = False
            return loss

        return run

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        if self._engine is not None and self._engine.has_pending:
            raise AssertionError(_ZERO_GRAD_RACE)
        parent: Any = super()
        parent.zero_grad(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        if self._engine is not None:
            self._engine.forget()
        self._is_synchronized = False
        self._synchronizes = True
        parent: Any = super()
        own: Any = self
        groups, state = own.param_groups, own.state
        parent.load_state_dict(*args, **kwargs)
        # in place: a scheduler may hold the optimizer that was passed, which shares these
        for group, loaded in zip(groups, own.param_groups, strict=True):
            group.update(loaded)
        loaded_state = dict(own.state)
        state.clear()
        state.update(loaded_state)
        own.param_groups, own.state = groups, state


def DistributedOptimizer(  # noqa: N802, PLR0917 (Horovod's name and signature)
    optimizer: Any,
    named_parameters: Any = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The optimizer with gradients reduced over the ranks; use it in place of the one that was passed."""
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    if op == Adasum and world.size() > 1:
        raise operations.no_adasum()
    named = _named(optimizer, named_parameters)
    wrapped = _with_class(optimizer)
    wrapped._is_synchronized, wrapped._synchronizes = False, True
    wrapped.backward_passes_per_step = backward_passes_per_step
    wrapped._engine = wrapped._watch_for_unreduced = None
    trained = [(name, parameter) for name, parameter in named if parameter.requires_grad]
    if world.size() == 1 or not process_set.included():
        return wrapped
    if process_set.rank() == 0:
        wrapped._watch_for_unreduced = functools.partial(_tell_unreduced, {id(parameter) for _, parameter in trained})
    if not trained:
        return wrapped
    _take_over(trained)
    reduction = _reduction(op, gradient_predivide_factor, compression, process_set)
    if compression not in (Compression.none, Compression.fp16):
        wrapped._engine = CompressedGradients(trained, compression, reduction, process_set, backward_passes_per_step)
        engines.add(wrapped._engine)
        return wrapped
    wrapped._engine = FusedGradients(
        trained,
        group=process_set.gradient_group,
        reduction=reduction,
        limits=limits_from(),
        passes=backward_passes_per_step,
        explicit=_explicit(groups if groups is not None else num_groups or None, [p for _, p in trained]),
        is_sparse_kept=not sparse_as_dense,
        on_late_change=functools.partial(_tell_late_change, process_set),
    )
    engines.add(wrapped._engine)
    return wrapped


def _take_over(trained: Sequence[tuple[str, Any]]) -> None:
    """Hooks live as long as their parameters, and an optimizer that a script replaced must not go on reducing.

    Now, at a moment that all ranks share: garbage is collected when it suits each of them.
    """
    taken = {id(parameter) for _, parameter in trained}
    for engine in [engine for engine in engines if any(id(one) in taken for one in engine.parameters)]:
        engine.forget()
        engine.remove()
        engines.discard(engine)


def _tell_late_change(process_set: ProcessSet) -> None:
    """No error: Horovod loses such a change too, and says nothing."""
    if process_set.rank() != 0 or "late change" in _told:
        return
    _told.add("late change")
    error = TopoutError(
        "Gradients were changed between backward and optimizer.step(), and the change is lost.",
        why="they travel to the other ranks while backward runs, and step() puts the averages in their place",
        do="call optimizer.synchronize() before clipping, then with optimizer.skip_synchronize(): optimizer.step()",
    )
    sys.stderr.write(f"topout: {error}\n")


def _tell_unreduced(known: set[int], optimizer: Any) -> None:
    """No error: Horovod follows what it finds when the optimizer is wrapped, too, and says nothing."""
    if "unreduced" in _told:
        return
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    num_unknown = sum(parameter.grad is not None and id(parameter) not in known for parameter in held)
    if not num_unknown:
        return
    _told.add("unreduced")
    error = TopoutError(
        f"The gradients of {counted(num_unknown, 'parameter')} are not averaged: each rank trains by its own.",
        why="they were frozen, or not in the optimizer yet, when hvd.DistributedOptimizer was called",
        do="after requires_grad_(True) or add_param_group call hvd.DistributedOptimizer again on the optimizer that "
        "was passed to it, before the next backward pass",
    )
    sys.stderr.write(f"topout: {error}\n")


def _await(engine: Any) -> None:
    """Outside backward, so with a row of its own: it would be the script's own code otherwise."""
    start_ns = now_ns()
    engine.synchronize()
    recorder = current()
    if recorder is not None:
        recorder.guard(_record_wait, recorder, engine.group, start_ns)


def _record_wait(recorder: Recorder, group: Any, start_ns: int) -> None:
    name = f"synchronize{AWAITED}@{group.group_name}"
    recorder.span(recorder.code(Kind.COLLECTIVE, name), start_ns, NOT_GIVEN, _num_awaited[name])
    _num_awaited[name] += 1


def _reduction(op: int, predivide: float, compression: Any, process_set: ProcessSet) -> Reduction:
    """Half precision is summed and then divided, as Horovod does: small gradients do not vanish on the way."""
    wire_dtype = torch.float16 if compression is Compression.fp16 else None
    if op != Average:
        return Reduction(op=operations._REDUCTIONS[operations.chosen_op(op, None)], wire_dtype=wire_dtype)
    if predivide == 1.0 and wire_dtype is None:
        return averaging(process_set.gradient_group)
    return Reduction(
        op=dist.ReduceOp.SUM, before=1.0 / predivide, after=predivide / len(process_set.ranks), wire_dtype=wire_dtype
    )


def _named(optimizer: Any, named_parameters: Any) -> list[tuple[str, Any]]:
    """All of the optimizer's parameters with their names, in the optimizer's order."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if named_parameters is None:
        return [(f"allreduce.noname.{number}", parameter) for number, parameter in enumerate(parameters)]
    pairs = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
            "model.named_parameters()."
        )
    doubles = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if doubles:
        raise ValueError(f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(doubles)}")
    names = {id(parameter): name for name, parameter in pairs}
    unnamed = [str(id(parameter)) for parameter in parameters if id(parameter) not in names]
    if unnamed:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named. "
            f"Python object ids: {', '.join(unnamed)}"
        )
    return [(names[id(parameter)], parameter) for parameter in parameters]


def _explicit(groups: Any, parameters: Sequence[Any]) -> list[list[int]] | None:
    if groups is None:
        return None
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError("groups should be a non-negative integer or a list of list of torch.Tensor.")
        return split_evenly(range(len(parameters)), groups) if groups else None
    numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
    asked = [[numbers[id(tensor)] for tensor in group if id(tensor) in numbers] for group in groups]
    taken = [number for group in asked for number in group]
    if len(set(taken)) < len(taken):
        raise ValueError("A parameter can only appear once in groups.")
    return [*asked, *([number] for number in range(len(parameters)) if number not in set(taken))]


def _with_class(optimizer: Any) -> Any:
    """Shares groups, state and hooks with the one that was passed, as the script may still hold that one."""
    kind: Any = type(optimizer.__class__.__name__, (_Distributed, optimizer.__class__), {})
    wrapped: Any = object.__new__(kind)
    # a scheduler puts its own `step` on the instance, bound to the old one
    wrapped.__dict__.update({name: value for name, value in optimizer.__dict__.items() if name != "step"})
    return wrapped
