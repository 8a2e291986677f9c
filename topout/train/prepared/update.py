"""Computes a group's next parameters while later groups travel; `optimizer.step()` puts them in place, or forgets them.

The optimizer otherwise begins when the last gradient has come, and nothing hides it. Unlike `early_update`, nothing of
it can be seen before `step()`: parameters and state keep their values, in their memory, and the gradients tell whoever
does more than look at them. Whatever came between backward and step (clipping, a loss scaler, another rate, a step that
is left out), the update is forgotten and the optimizer does its own. The same bits either way.

On CPUs, for the optimizers that treat every parameter by itself. It takes the memory of parameters and state once more.
"""

import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from topout.host.memory_room import room_of_rank
from topout.train.buckets.guest import weakly
from topout.train.buckets.regroup import Hook
from topout.train.fused_group import are_plain
from topout.train.partial_step import KINDS, Settings, late_divisor, settings_of
from topout.train.place import Place
from topout.train.prepared import parameter_data
from topout.train.prepared.group import PreparedGroup, versions_of
from topout.train.prepared.sample import Sample
from topout.train.prepared.watched_gradient import WatchedGradient, watched
from topout.train.quick_step import QuickStep

ROOM_SHARE = 0.125
"""Of the memory that is free for this rank, what second copies may take."""
WORTH_BYTES = 64 << 10
"""Of a parameter in the middle: updating smaller ones takes less than what is done here for each."""
VAIN_SHARE, VAIN_AT_FIRST = 0.05, 3
"""Steps whose prepared updates were forgotten: more than these, and no further ones are prepared."""
_DENORMAL = 5e-324
"""The smallest number above zero."""

_of_models: "weakref.WeakKeyDictionary[Any, PreparedUpdate]" = weakref.WeakKeyDictionary()


class _Ready(NamedTuple):
    """What was prepared in this backward, and the gradients from which."""

    group: PreparedGroup
    gradients: list[Any]
    versions: list[int]
    """How often each had been changed."""
    sample: Sample


class PreparedUpdate:
    """One for a wrapped model and its optimizer, whose kernels are fused; `hook` is what DDP is given."""

    def __init__(self, optimizer: Any, place: Place) -> None:
        # which holds this by its hooks, as the model does by its own
        self._optimizer, self._place = weakref.ref(optimizer), place
        self._lock = threading.Lock()
        self._groups: dict[int, PreparedGroup] = {}
        """By number of the bucket, until DDP has others."""
        self._names: dict[int, tuple[int, ...]] = {}
        self._ready: list[_Ready] = []
        self._watched: dict[Any, WatchedGradient] = {}
        self._given_back: list[tuple[Any, Any]] = []
        self._settings: Settings = []
        self._is_preparing = self._is_touched = self._has_closure = self._has_given_up = False
        self._num_used = self._num_vain = 0
        self._handles = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    @property
    def hook(self) -> Hook:
        return None, self._average

    def close(self) -> None:
        """Averages from now on and does no more."""
        self._forget()
        self._give_up()
        for handle in self._handles:
            handle.remove()

    def __reduce__(self) -> Any:
        """Copies and pickles of the model have its hook, and nothing behind it."""
        return _OfACopy, ()

    # backward

    def _average(self, _: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer, parameters, number = bucket.buffer(), bucket.parameters(), bucket.index()
        # not for a rank whose data has ended, which joins in with the sums of the others
        is_in_backward = torch._C._current_graph_task_id() >= 0
        if number == 0 and is_in_backward:
            self._begin_backward(parameters)
        is_preparing = self._is_preparing and is_in_backward
        divisor = late_divisor(buffer, self._place.world_size)
        if divisor == 1:
            # as DDP does it: dividing gives other bits
            buffer.mul_(1 / self._place.world_size)
        # nothing travels behind the last one, under which an update could be hidden
        is_hidden = is_preparing and not bucket.is_last()
        work = dist.all_reduce(buffer, group=self._place.group, async_op=True)
        if is_preparing and bucket.is_last():
            self._drop_groups_from(number)
            # in two turns: DDP, which comes between, looks at gradients once more
            _after_backward(lambda: _after_backward(self._watch))

        def arrived(future: Any) -> Any:
            # raises what the link did
            averaged = future.value()[0]
            if not (is_hidden and self._prepare(number, parameters, averaged, divisor)) and divisor != 1:
                averaged.div_(divisor)
            return averaged

        return work.get_future().then(arrived)

    def _begin_backward(self, parameters: Sequence[Any]) -> None:
        # of a step that was left out
        self._forget()
        optimizer = self._optimizer()
        if _has_compiled():
            # which takes the gradients' subclass for something that it cannot trace
            self._give_up()
        may_not = self._has_given_up or self._has_closure or _flushes_denormal()
        self._is_preparing = not (may_not or optimizer is None)
        if not self._is_preparing:
            return
        if self._names.get(0) != tuple(map(id, parameters)):
            # all of them will be others
            self._groups, self._names, self._watched = {}, {}, {}
        self._settings = settings_of(optimizer)

    def _drop_groups_from(self, number: int) -> None:
        """There were more groups before, while their sizes were tried."""
        with self._lock:
            for former in [other for other in self._groups if other >= number]:
                del self._groups[former], self._names[former]

    def _prepare(self, number: int, parameters: list[Any], flat: Any, divisor: int) -> bool:
        """On a thread of the process group, while backward goes on."""
        with self._lock:
            optimizer = self._optimizer()
            if self._has_given_up or optimizer is None or _flushes_denormal():
                return False
            group = self._group(number, parameters, optimizer)
            gradients = [parameters[place].grad for place in group.places]
            has_all = group.has_all and all(gradient is not None for gradient in gradients)
            if self._has_given_up or not (has_all and _lie_in(flat, gradients) and self._is_laid_out(group)):
                return False
            is_done = group.prepare(gradients, self._settings, divisor)
            if is_done:
                sample = Sample(gradients)
                sample.take()
                self._ready.append(_Ready(group, gradients, versions_of(gradients), sample))
            return is_done

    def _is_laid_out(self, group: PreparedGroup) -> bool:
        try:
            return group.lay_out(self._settings)
        except (MemoryError, RuntimeError):
            # as torch says that there is no memory; training itself needs none of this
            self._give_up()
            return False

    def _group(self, number: int, parameters: list[Any], optimizer: Any) -> PreparedGroup:
        names = tuple(map(id, parameters))
        known = self._groups.get(number)
        if known is None or self._names[number] != names:
            known = self._groups[number] = PreparedGroup(optimizer, parameters)
            self._names[number] = names
            if sum(group.num_bytes for group in self._groups.values()) > ROOM_SHARE * room_of_rank(
                self._place.local_world_size
            ):
                self._give_up()
        return known

    def _watch(self) -> None:
        """Gradients of prepared updates, when backward is through with them, and their parameters."""
        for group, gradients, *_ in self._ready:
            parameter_data.tell(group.parameters, weakly(self._touch))
            for parameter, gradient in zip(group.parameters, gradients, strict=True):
                known = self._watched.get(parameter)
                if known is None or known.plain is not gradient:
                    known = self._watched[parameter] = watched(gradient, weakly(self._touch))
                if parameter.grad is gradient:
                    parameter.grad = known

    def _touch(self) -> None:
        self._is_touched = True

    # the optimizer's step

    def _before_step(self, optimizer: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        # what it computes inside of the step is not ahead of it
        self._has_closure = any(given is not None for given in (*args[1:], kwargs.get("closure")))
        if not self._ready:
            return
        is_scaled = any(getattr(optimizer, name, None) is not None for name in ("grad_scale", "found_inf"))
        if self._has_closure or is_scaled or not (self._is_last(optimizer) and self._may_commit(optimizer)):
            self._forget()
            return
        ready, self._ready = self._ready, []
        # before what the script has had called after a step, which finds gradients there, and may drop them
        optimizer._optimizer_step_post_hooks.move_to_end(self._handles[1].id, last=False)
        for group, gradients, *_ in ready:
            parameter_data.forget(group.parameters)
            group.commit()
            for parameter, gradient in zip(group.parameters, gradients, strict=True):
                # what has been updated has no gradient, so the step passes over it
                parameter.grad = None
                self._given_back.append((parameter, gradient))
        self._num_used += 1

    def _may_commit(self, optimizer: Any) -> bool:
        if self._is_touched or settings_of(optimizer) != self._settings:
            return False
        return all(map(self._is_untouched, self._ready))

    def _is_untouched(self, ready: _Ready) -> bool:
        group = ready.group
        held = [parameter.grad for parameter in group.parameters]
        are_held = all(
            one is gradient or (type(one) is WatchedGradient and one.plain is gradient)
            for one, gradient in zip(held, ready.gradients, strict=True)
        )
        is_unchanged = versions_of(ready.gradients) == ready.versions and ready.sample.is_as_taken()
        return are_held and is_unchanged and group.is_as_it_was(self._settings) and group.is_alone()

    def _is_last(self, optimizer: Any) -> bool:
        """Of what is called before the step: others are to find gradients there, and may change them."""
        hooks = optimizer._optimizer_step_pre_hooks
        behind = [hooks[number] for number in [*hooks][[*hooks].index(self._handles[0].id) + 1 :]]
        return all(isinstance(getattr(hook, "__self__", None), PreparedUpdate | QuickStep) for hook in behind)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        for parameter, gradient in self._given_back:
            if parameter.grad is None:
                parameter.grad = gradient
        self._given_back, self._has_closure = [], False
        if not (self._has_given_up or self._is_last(optimizer)):
            # `QuickStep` moves behind it by itself
            optimizer._optimizer_step_pre_hooks.move_to_end(self._handles[0].id)

    def _forget(self) -> None:
        """Gradients are plain: as if nothing had been prepared."""
        ready, self._ready, self._is_touched = self._ready, [], False
        if not ready:
            return
        for group, gradients, *_ in ready:
            parameter_data.forget(group.parameters)
            for parameter, gradient in zip(group.parameters, gradients, strict=True):
                if isinstance(held := parameter.grad, WatchedGradient):
                    parameter.grad = gradient if held.is_in_place() else held.moved()
        self._num_vain += 1
        if self._num_vain > VAIN_AT_FIRST + VAIN_SHARE * self._num_used:
            self._give_up()

    def _give_up(self) -> None:
        """What it holds of memory is free again."""
        self._has_given_up = True
        self._groups, self._names, self._watched = {}, {}, {}


def prepared_update(ddp: Any, optimizer: Any, place: Place) -> PreparedUpdate | None:
    """None where updates cannot be prepared; whether that makes the step shorter is measured (`buckets.autotune`).

    One for a model: wrapped anew, after layers were unfrozen, it gets another.
    """
    former = _of_models.pop(ddp.module, None)
    if former is not None:
        former.close()
    if optimizer is None or place.device.type != "cpu" or type(optimizer) not in KINDS:
        return None
    groups = optimizer.param_groups
    parameters = [parameter for group in groups for parameter in group["params"]]
    num_bytes = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    are_large = num_bytes >= WORTH_BYTES * max(len(parameters), 1)
    if not (are_large and all(map(are_plain, groups)) and hasattr(torch._C, "_storage_Use_Count")):
        return None
    made = _of_models[ddp.module] = PreparedUpdate(optimizer, place)
    return made


class _OfACopy:
    def _average(self, _: Any, bucket: dist.GradBucket) -> Any:
        raise NotImplementedError("a copy of a DDP module averages without hooks")


def _lie_in(flat: Any, gradients: Sequence[Any]) -> bool:
    """What has been averaged is these gradients: not of a rank whose data has ended, nor of one that copies them."""
    start = flat.data_ptr()
    end = start + flat.numel() * flat.element_size()
    return all(start <= gradient.data_ptr() < end or gradient.numel() == 0 for gradient in gradients)


def _flushes_denormal() -> bool:
    """Whether this thread takes the smallest numbers for zero (`torch.set_flush_denormal`): others need not."""
    return _DENORMAL == 0.0


def _has_compiled() -> bool:
    """Whether torch has compiled anything in this process."""
    return bool(getattr(sys.modules.get("torch._dynamo.convert_frame"), "FRAME_COUNTER", 0))


def _after_backward(callback: Any) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(callback)
