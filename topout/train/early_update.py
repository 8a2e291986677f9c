"""Updates the parameters of a group as soon as its gradients are averaged, while later groups still travel.

The optimizer otherwise begins when the last gradient has come, and nothing hides it. Here a communication hook updates
each group by the optimizer's own arithmetic, on the same state; the script's `optimizer.step()` then only does what is
left over. The same bits as without it: the optimizers that it takes treat every parameter by itself.

Not where gradients are looked at or changed between backward and step: clipping, a loss scaler, a step that is skipped.
The update has happened by then. Such a change is seen at `step()` and is an error, never a silent difference.
"""

import copy
import threading
from typing import Any

import torch
import torch.distributed as dist

from topout.schema.errors import TopoutError
from topout.train.buckets.regroup import Hook
from topout.train.place import Place

KINDS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)


class EarlyUpdate:
    """One for a wrapped model and its optimizer; `hook` is what DDP is given."""

    def __init__(self, optimizer: Any, place: Place) -> None:
        self._optimizer, self._place = optimizer, place
        # of the same class; it gets the groups of one bucket at a time, and the state as it is then
        self._partial = copy.copy(optimizer)
        self._step = getattr(type(optimizer).step, "__wrapped__", type(optimizer).step)
        self._lock = threading.Lock()
        self._updated: dict[Any, tuple[Any, int]] = {}
        self._settings: list[dict[str, Any]] = []
        self._held: list[tuple[Any, Any]] = []
        # among 2, 4, 8, … ranks dividing the sum gives the bits of dividing before; and later is while others travel
        self._divides_late = place.world_size & (place.world_size - 1) == 0
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)

    @property
    def hook(self) -> Hook:
        return None, self._average

    def _average(self, _: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer, parameters = bucket.buffer(), bucket.parameters()
        if not self._divides_late:
            buffer.div_(self._place.world_size)
        work = dist.all_reduce(buffer, group=self._place.group, async_op=True)

        def arrived(future: Any) -> Any:
            averaged = future.value()[0]
            if self._divides_late:
                averaged.div_(self._place.world_size)
            self._update(parameters)
            return averaged

        return work.get_future().then(arrived)

    def _update(self, parameters: list[Any]) -> None:
        """On a thread of the process group, while backward goes on."""
        wanted = set(parameters)
        with self._lock, torch.no_grad():
            if wanted & self._updated.keys():
                raise _twice()
            groups = self._optimizer.param_groups
            self._settings = [_settings(group) for group in groups]
            self._partial.param_groups = [
                {**group, "params": [p for p in group["params"] if p in wanted and p.grad is not None]}
                for group in groups
            ]
            # not once and for all: a checkpoint that is loaded brings another state
            self._partial.state = self._optimizer.state
            self._step(self._partial)
            for group in self._partial.param_groups:
                self._updated |= {p: (p.grad, p.grad._version) for p in group["params"]}

    def _before_step(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # the first of `args` is the optimizer itself
        if any(given is not None for given in (*args[1:], kwargs.get("closure"))):
            raise TopoutError(
                "optimizer.step(closure) and early_update do not go together.",
                why="A closure computes gradients inside the step, and they have been applied by then.",
                do="leave out early_update=True",
            )
        if self._updated and [_settings(group) for group in optimizer.param_groups] != self._settings:
            raise _changed("the optimizer's settings were changed")
        for parameter, (gradient, version) in self._updated.items():
            if parameter.grad is not gradient and parameter.grad is not None:
                raise _changed("a gradient was replaced")
            if gradient._version != version:
                raise _changed("a gradient was changed")
        # what has been updated has no gradient, so the step passes over it
        self._held = [(parameter, parameter.grad) for parameter in self._updated]
        for parameter in self._updated:
            parameter.grad = None

    def _after_step(self, *_: Any) -> None:
        for parameter, gradient in self._held:
            parameter.grad = gradient
        self._held = []
        self._updated.clear()


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def check_early(optimizer: Any, compress: str | None) -> None:
    why = None
    if optimizer is None:
        why = "It updates parameters as their averaged gradients come, and no optimizer was given."
    elif compress is not None:
        why = f"compress={compress!r} averages in its own way."
    elif type(optimizer) not in KINDS:
        why = f"{type(optimizer).__name__} may not treat every parameter by itself, as torch's SGD, Adam and AdamW do."
    if why is not None:
        raise TopoutError("early_update=True cannot be had here.", why=why, do="leave it out")


def _changed(what: str) -> TopoutError:
    return TopoutError(
        f"With early_update {what} between backward and optimizer.step().",
        why="Each group was updated when its gradients had come; clipping, a loss scaler or the like came too late.",
        do="leave out early_update=True",
    )


def _twice() -> TopoutError:
    return TopoutError(
        "With early_update a second backward came before optimizer.step().",
        why="Each averaging backward updates the parameters, so there is one for a step.",
        do="accumulate under model.no_sync(), or leave out early_update=True",
    )
