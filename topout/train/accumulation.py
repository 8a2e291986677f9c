"""What happens between a forward pass and the next one: scaling, accumulation, clipping, the optimizer's step.

    with stepper.forward():
        loss = criterion(model(images), labels)
    if stepper.backward(loss):
        schedule.step()

With `accumulate=4` gradients of four batches are averaged before a step, as of one batch four times as large; ranks
exchange them once, at the fourth. Batch normalisation still sees the small batches. Not for several optimizers that
step in turns (GANs): those take `precision.autocast` and `precision.scaler` themselves.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from topout.train import precision
from topout.train.backward_kernels import BackwardKernels
from topout.train.finite import FiniteLoss
from topout.train.place import Place


class Stepper:
    """Made by `Compute.stepper`. `model` is what the loop calls, wrapped for many ranks or not."""

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        place: Place,
        *,
        precision_name: str = "fp32",
        backward_kernels: BackwardKernels | None = None,
        accumulate: int = 1,
        clip_norm: float | None = None,
        check_loss_every: int = 16,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.precision = precision_name
        self.accumulate = accumulate
        self.clip_norm = clip_norm
        self.step = 0
        """Steps of the optimizer so far, those the scaler skipped included."""
        self.scaler = precision.scaler(precision_name, place.device)
        self._device = place.device
        self._kernels = backward_kernels
        self._num_batches = 0
        self._ends_here = False
        self._skipped = torch.zeros((), device=place.device)
        self._watch = None
        if check_loss_every:
            self._watch = FiniteLoss(place, check_loss_every, tolerates=self.scaler.is_enabled())

    @contextmanager
    def forward(self, *, is_last: bool = False) -> Iterator[None]:
        """Around the forward pass and the loss. `is_last` ends the group early: the last batches of an epoch."""
        self._ends_here = is_last
        with self._exchange(), precision.autocast(self.precision, self._device):
            yield

    def backward(self, loss: Any) -> bool:
        """Gradients, and after the last batch of a group the step; whether there was one.

        A group that `is_last` cut short is still divided by `accumulate`, so that each sample weighs the same.
        """
        if self._watch is not None:
            self._watch.add(loss, self.step)
        kernels = self._kernels.around(self.step) if self._kernels is not None else nullcontext()
        with self._exchange(), kernels:
            self.scaler.scale(loss / self.accumulate if self.accumulate > 1 else loss).backward()
        if not self._is_last:
            self._num_batches += 1
            return False
        self._make_step()
        self._num_batches, self._ends_here = 0, False
        self.step += 1
        return True

    def autocast(self) -> AbstractContextManager[Any]:
        """Around evaluation: the precision of training, and nothing else of it."""
        return precision.autocast(self.precision, self._device)

    @property
    def skipped(self) -> int:
        """Steps that the scaler left out since a gradient overflowed fp16. Waits for the device."""
        return int(self._skipped.item())

    def settle(self) -> None:
        """Raises now what is known of the losses so far. Before a checkpoint and at the end; all ranks together."""
        if self._watch is not None:
            self._watch.settle()

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers: the scaler's state and the counts. Between groups; gradients are not in it."""
        if self._num_batches:
            warnings.warn(
                f"A checkpoint between batch {self._num_batches} and {self.accumulate} of a step does not hold their "
                "gradients: save after backward() returned True, or pass forward(is_last=True) at the epoch's end.",
                stacklevel=2,
            )
        return {"step": self.step, "skipped": self.skipped, "scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.step = int(state["step"])
        self._num_batches = 0
        self._skipped.fill_(float(state["skipped"]))
        # a run in another precision has an empty one: the scaler then begins anew
        if self.scaler.is_enabled() and state["scaler"]:
            self.scaler.load_state_dict(dict(state["scaler"]))

    @property
    def _is_last(self) -> bool:
        return self._ends_here or self._num_batches + 1 >= self.accumulate

    def _exchange(self) -> AbstractContextManager[Any]:
        """Whether ranks average the gradients of this batch; DDP asks in forward, so it must be known there."""
        if hasattr(self.model, "set_requires_gradient_sync"):  # FSDP2
            self.model.set_requires_gradient_sync(self._is_last)
        elif not self._is_last and hasattr(self.model, "no_sync"):
            context: AbstractContextManager[Any] = self.model.no_sync()
            return context
        return nullcontext()

    def _make_step(self) -> None:
        if self.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self._parameters(), self.clip_norm)
        self.scaler.step(self.optimizer)
        if self.scaler.is_enabled():
            # on the device: asking the scaler for its scale would wait for the step
            for found in self.scaler._found_inf_per_device(self.optimizer).values():
                self._skipped += found.to(self._skipped.device) > 0
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def _parameters(self) -> list[Any]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
