"""Watches the gradient noise scale while a model trains: B_simple = tr(Sigma) / |G|^2, in samples.

    noise = NoiseScale(model, optimizer, place, batch_size=64)
    ...                                   # the loop is unchanged
    noise.value                           # Estimate(value=210, low=150, high=300, ...) or None

Every `every`-th step the squared norms of this rank's gradients are added up as backward produces them, and that of
their average once ranks have averaged, before anything clips it. Nothing is copied, no device is waited for; one
all-reduce of three numbers travels while training goes on. Other steps pay for one comparison.

Not for one rank without accumulation, where there is no second gradient of the same weights; nor for pipelines, whose
ranks hold different parameters; nor for several losses of one batch with a backward each: they look like micro-batches.
"""

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from topout.record.clock import now_ns
from topout.record.recorder import current
from topout.train.agreement import equal_everywhere, together
from topout.train.noise_scale import journal
from topout.train.noise_scale.estimate import Estimate, Sample, estimate
from topout.train.noise_scale.given import check_given, check_peers, check_scaler, size_of_batch
from topout.train.noise_scale.norms import square, total
from topout.train.noise_scale.own_gradients import OwnGradients, averages_now, divisor, is_fsdp, visible_parameters
from topout.train.noise_scale.travelling import Travelling
from topout.train.place import Place

ROUNDING = 1e-3
"""A mean's square exceeds the mean of squares by rounding alone, bf16 on the wire included."""


class NoiseScale:
    """From making to `close`; all ranks make it together, after the model was wrapped and before it trains.

    `batch_size`: samples of one backward on one rank; taken from `loader` where it is left out. `accumulate`: how many
    backwards a step has, counted where it is left out; one rank must say it. `scaler`: the gradient scaler, if any.
    `num_data_ranks`: how many ranks see different data, where those are not all (tensor parallel, by DTensors).
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        place: Place,
        *,
        batch_size: int | None = None,
        loader: Any = None,
        accumulate: int | None = None,
        every: int = 10,
        window: int = 50,
        scaler: Any = None,
        num_data_ranks: int | None = None,
    ) -> None:
        model = getattr(model, "_orig_mod", model)  # torch.compile's wrapper hides DDP
        self.num_data_ranks = place.world_size if num_data_ranks is None else num_data_ranks
        # others average after backward, by hand: what the optimizer gets is the first to be seen of it
        self._averages_in_backward = (
            self.num_data_ranks == 1 or isinstance(model, DistributedDataParallel) or is_fsdp(model)
        )
        self.batch_size = together(lambda: size_of_batch(batch_size, loader), place)
        check_given(model, accumulate, every, window, self.num_data_ranks)
        check_scaler(scaler, self._averages_in_backward)
        told = {
            "batch_size": self.batch_size,
            "accumulate": accumulate,
            "every": every,
            "num_data_ranks": num_data_ranks,
        }
        equal_everywhere(told, place, ("All ranks sample the same steps of equal batches.", "give all ranks the same"))
        check_peers(model, place.world_size, self.num_data_ranks)
        self.every, self.accumulate, self.step = every, accumulate, 0
        self.num_dropped = 0
        self.missing: str | None = None
        """Why the last sample was of no use, until one is."""
        self._model, self._optimizer, self._place, self._scaler = model, optimizer, place, scaler
        self._samples: deque[Sample] = deque(maxlen=window)
        self._under_way: deque[Travelling] = deque()
        self._own: OwnGradients | None = None
        self._big: Tensor | None = None
        self._is_queued = False
        self._handles = [optimizer.register_step_post_hook(self._after_step)]
        self._before: Any = None
        self._recorder = current()
        if self._recorder is not None:
            self._recorder.at_finish.append(self.settle)
        self._arm()

    @property
    def value(self) -> Estimate | None:
        """The estimate of the last window; None while there are too few samples, and `missing` may say why."""
        self._receive(must_wait=False)
        return estimate(self._samples)

    def settle(self) -> None:
        """Takes in what has arrived. At the end; no collective."""
        self._receive(must_wait=False)

    def close(self) -> None:
        """Off the model and the optimizer; the value stays."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._disarm()

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, for a checkpoint: a window takes some hundred steps to fill."""
        self._receive(must_wait=True)
        rows = [[s.step, s.small, s.big, s.batch_small, s.batch_big] for s in self._samples]
        return {"step": self.step, "samples": rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = int(state["step"])
        self._samples.clear()
        for step, small, big, batch_small, batch_big in state["samples"]:
            sample = Sample(
                step=int(step), small=small, big=big, batch_small=int(batch_small), batch_big=int(batch_big)
            )
            self._samples.append(sample)
        self._disarm()
        self._arm()

    # a sampled step

    def _arm(self) -> None:
        """The last step of every `every`: FSDP2's parameters are gathered for the first time in the first."""
        if self.step % self.every != self.every - 1:
            return
        parameters = visible_parameters(self._model)
        if parameters is None:
            return
        self._is_queued = False  # a backward that raised never came to its end
        self._own = OwnGradients(parameters, self._place.world_size // self.num_data_ranks, self._at_gradient)
        self._before = self._optimizer.register_step_pre_hook(self._before_step)

    def _disarm(self) -> None:
        if self._own is not None:
            self._own.detach()
            self._before.remove()
        self._own = self._big = self._before = None

    def _at_gradient(self) -> None:
        if self._is_queued or not self._averages_in_backward:
            return
        self._is_queued = True
        # private to torch, but what DDP and FSDP2 do; queued twice, ours comes after theirs, which wait for averages
        queue = torch.autograd.Variable._execution_engine.queue_callback
        queue(lambda: queue(self._after_backward))

    def _after_backward(self) -> None:
        """Of every micro-batch, since only the optimizer's step shows which was the last."""
        self._is_queued = False
        if self._own is not None and averages_now(self._model):
            self._big = self._averaged_square()

    def _averaged_square(self) -> Tensor:
        gradients = [p.grad for p in self._model.parameters() if p.grad is not None]
        return total([square(gradient, self._place.world_size) for gradient in gradients], self._place.device)

    def _before_step(self, *_: Any) -> None:
        own, big = self._own, self._big
        if own is None:
            return
        if not self._averages_in_backward:
            big = self._averaged_square()
        self._receive(must_wait=True)
        small = total(own.squares, self._place.device)
        if big is None:
            big = torch.full_like(small, math.nan)
        values = torch.stack([small, big, torch.full_like(small, own.num_backwards)])
        scale = self._scale()
        if scale is not None:
            # here the scale is still the one that the losses were multiplied by
            values[:2] /= torch.as_tensor(scale, dtype=values.dtype).to(values.device) ** 2
        self._under_way.append(Travelling(values, self._place, step=self.step, at_ns=now_ns()))

    def _after_step(self, *_: Any) -> None:
        if self._own is not None:
            self._disarm()
        self.step += 1
        if self.step % self.every == self.every - 1:
            self._arm()

    def _scale(self) -> Any:
        if self._scaler is None or not self._scaler.is_enabled():
            return None
        scale = getattr(self._scaler, "_scale", None)  # private, but get_scale() would wait for the device
        return self._scaler.get_scale() if scale is None else scale

    # what came of it

    def _receive(self, *, must_wait: bool) -> None:
        while self._under_way and (must_wait or self._under_way[0].is_there):
            arrived = self._under_way.popleft()
            self._take(arrived, *arrived.answer())

    def _take(self, arrived: Travelling, squares: float, big: float, backwards: float) -> None:
        num_backwards, rest = divmod(round(backwards), self._place.world_size)
        num_parts = num_backwards * self.num_data_ranks
        # DDP and FSDP2 divide by the number of ranks; then this is the mean over parts of |num_backwards * part|^2
        small = squares * num_parts / divisor(self._model, self.num_data_ranks) ** 2
        self.missing = self._why_useless(small, big, num_backwards, bool(rest))
        if self.missing is not None:
            self.num_dropped += 1
            journal.note(f"Noise scale: step {arrived.step} gave none: {self.missing}")
            return
        sample = Sample(
            step=arrived.step,
            small=small,
            big=big,
            batch_small=self.batch_size,
            batch_big=self.batch_size * num_parts,
        )
        self._samples.append(sample)
        found = estimate(self._samples)
        if found is not None and self._place.is_first:
            journal.write(found, arrived.step, arrived.at_ns)

    def _why_useless(self, small: float, big: float, num_backwards: int, is_uneven: bool) -> str | None:
        if is_uneven or num_backwards == 0:
            return "ranks made different numbers of backwards before the step, or none."
        if self.accumulate is not None and num_backwards != self.accumulate:
            return f"{num_backwards} backwards before the step, where accumulate={self.accumulate} was said."
        if num_backwards * self.num_data_ranks < 2:
            return "one backward on one rank: a second gradient of the same weights is missing."
        if not (math.isfinite(small) and math.isfinite(big)):
            return "its gradients were not finite."
        if small <= 0:
            return "its gradients were zero."
        if big > small * (1 + ROUNDING):
            return "the gradient that was stepped with is not the mean of those seen (left over from an earlier step?)."
        return None
