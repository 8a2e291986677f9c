"""Updates the parameters of a group as soon as its gradients are averaged, while later groups still travel.

The optimizer otherwise begins when the last gradient has come, and nothing hides it. Here a communication hook updates
each group by the optimizer's own arithmetic, on the same state; the script's `optimizer.step()` then only does what is
left over. The same bits as without it: the optimizers that it takes treat every parameter by itself.

Not where gradients are looked at or changed between backward and step: clipping, a loss scaler, a step that is skipped.
The update has happened by then. Such a change is seen at `step()` and is an error, as far as torch counts changes: one
written through `grad.data` or NumPy leaves no trace, and comparing values would take a pass over all gradients.
"""

import threading
from typing import Any

import torch
import torch.distributed as dist

from topout.train.buckets.regroup import Hook
from topout.train.partial_step import PartialStep, Settings, changed, check_no_closure, late_divisor, twice
from topout.train.place import Place

OPTION = "early_update"


class EarlyUpdate:
    """One for a wrapped model and its optimizer; `hook` is what DDP is given."""

    NAME = "early"

    def __init__(self, optimizer: Any, place: Place) -> None:
        self._place, self._optimizer = place, optimizer
        self._partial = PartialStep(optimizer)
        self._lock = threading.Lock()
        self._updated: dict[Any, tuple[Any, int, int]] = {}
        """Parameter -> its gradient, how often that had been changed, and where its memory was."""
        self._settings: Settings = []
        self._held: list[tuple[Any, Any]] = []
        optimizer.register_step_pre_hook(self._before_step)
        self._after = optimizer.register_step_post_hook(self._after_step)

    @property
    def hook(self) -> Hook:
        return None, self._average

    def _average(self, _: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer, parameters = bucket.buffer(), bucket.parameters()
        divisor = late_divisor(buffer, self._place.world_size)
        if divisor == 1:
            # as DDP does it: dividing gives other bits
            buffer.mul_(1 / self._place.world_size)
        work = dist.all_reduce(buffer, group=self._place.group, async_op=True)

        def arrived(future: Any) -> Any:
            # raises what the link did
            averaged = future.value()[0]
            self._update(parameters, averaged, divisor)
            return averaged

        return work.get_future().then(arrived)

    def _update(self, parameters: list[Any], flat: Any, divisor: int) -> None:
        """On a thread of the process group, while backward goes on."""
        gradients = [parameter.grad for parameter in parameters]
        with self._lock:
            if not self._updated.keys().isdisjoint(parameters):
                raise twice(OPTION)
            if not self._updated:
                self._settings = self._partial.settings()
                # so that a loss scaler leaves its work to `step()`, which sees it: its own leaves no trace on gradients
                self._optimizer._step_supports_amp_scaling = True
            self._partial.apply(parameters, gradients, self._settings, flat=flat, divisor=divisor)
            self._updated |= {
                parameter: (gradient, gradient._version, gradient.data_ptr())
                for parameter, gradient in zip(parameters, gradients, strict=True)
                if gradient is not None
            }

    def _before_step(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        check_no_closure(args, kwargs, OPTION)
        if self._updated and any(getattr(optimizer, name, None) is not None for name in ("grad_scale", "found_inf")):
            raise changed("a loss scaler came", OPTION)
        if self._updated and self._partial.settings() != self._settings:
            raise changed("the optimizer's settings were changed", OPTION)
        for parameter, (gradient, version, data_ptr) in self._updated.items():
            is_another = parameter.grad is not gradient and parameter.grad is not None
            # the latter by `grad.data = …`
            if is_another or gradient.data_ptr() != data_ptr:
                raise changed("a gradient was replaced", OPTION)
            if gradient._version != version:
                raise changed("a gradient was changed", OPTION)
        # before what the script has had called after a step, which finds gradients there, and may drop them
        self._optimizer._optimizer_step_post_hooks.move_to_end(self._after.id, last=False)
        # what has been updated has no gradient, so the step passes over it
        self._held = [(parameter, parameter.grad) for parameter in self._updated]
        for parameter in self._updated:
            parameter.grad = None

    def _after_step(self, *_: Any) -> None:
        for parameter, gradient in self._held:
            if parameter.grad is None:
                parameter.grad = gradient
        self._held = []
        self._updated.clear()
