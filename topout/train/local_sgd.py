"""Local SGD: each rank trains on its own and the ranks average their parameters every so many steps.

    local = LocalSGD(model, place, every=8, warmup=500)
    for batch in loader:
        ...
        optimizer.step()
        local.step()
    local.finish()

For links so slow that gradients cannot travel each step: bytes shrink by `every`. In the first `warmup` steps they are
averaged each step, as early steps go far (post-local SGD). What was always frozen is left alone. The model is the plain
one, not wrapped in DDP. All ranks must make the same number of steps. Not where DDP's step is short enough: what is
averaged rarely is not the same training, and `benchmarks/compression.py` shows by how much. Reference: Lin et al. 2020,
Don't Use Large Mini-Batches, Use Local SGD.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from topout.epoch.whole_number import whole
from topout.schema.errors import TopoutError
from topout.train import left_out
from topout.train.place import Place


class LocalSGD:
    def __init__(self, model: nn.Module, place: Place, *, every: int = 8, warmup: int = 0) -> None:
        """Begins with rank 0's parameters and buffers on all ranks."""
        check_not_wrapped(model)
        self.place, self.model = place, model
        self.every = whole("every", every)
        self.warmup = whole("warmup", warmup, least=0)
        self.num_steps = 0
        self.bytes_averaged = 0
        self._has_news = False
        self._learning: set[str] = set()
        self._note_learning()
        broadcast(model_tensors(model), place)
        left_out.leave_to(self)

    def step(self) -> bool:
        """After each `optimizer.step()`; whether the ranks met."""
        self.num_steps += 1
        self._has_news = True
        self._note_learning()
        is_due = self.num_steps <= self.warmup or (self.num_steps - self.warmup) % self.every == 0
        if is_due:
            self.meet()
        return is_due

    def finish(self) -> None:
        """Averages what was learnt since the last meeting; all ranks together, before an evaluation or the end."""
        if self._has_news:
            self.meet()

    def meet(self) -> None:
        with torch.no_grad():
            learnt = [one for name, one in self.model.named_parameters() if name in self._learning]
            self.bytes_averaged += average(learnt, self.place)
            self.bytes_averaged += average_buffers(self.model, self.place)
        self._has_news = False

    def averaged(self) -> list[nn.Parameter]:
        """What is frozen now as well: from the step on in which it learns."""
        return list(self.model.parameters())

    def _note_learning(self) -> None:
        """Once and for all: a discriminator is frozen while its generator learns, and all ranks must agree."""
        self._learning.update(name for name, one in self.model.named_parameters() if one.requires_grad)

    def state_dict(self) -> dict[str, Any]:
        """Between meetings parameters differ from rank to rank: `Checkpoints` of this as well keep each one's."""
        return {"num_steps": self.num_steps, "has_news": self._has_news}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_steps = int(state["num_steps"])
        # older states do not say; to average what is equal changes nothing
        self._has_news = bool(state.get("has_news", self.num_steps > 0))


def average(tensors: Iterable[Tensor], place: Place) -> int:
    """Averages in place, one all-reduce for each dtype; returns the bytes of the tensors."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        by_dtype.setdefault(tensor.dtype, []).append(tensor.detach())
    if place.world_size == 1:
        return 0
    num_bytes = 0
    for group in by_dtype.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in group])
        dist.all_reduce(flat.div_(place.world_size), group=place.group)
        parts = flat.split([tensor.numel() for tensor in group])
        torch._foreach_copy_(group, [part.view(tensor.shape) for part, tensor in zip(parts, group, strict=True)])
        num_bytes += flat.nbytes
    return num_bytes


def average_buffers(model: nn.Module, place: Place) -> int:
    """Running statistics are averaged; whole numbers, such as a count of batches, become rank 0's."""
    buffers = [buffer for buffer in model.buffers() if buffer.numel() > 0]
    broadcast([buffer for buffer in buffers if not is_averaged(buffer)], place)
    return average([buffer for buffer in buffers if is_averaged(buffer)], place)


def is_averaged(tensor: Tensor) -> bool:
    return bool(tensor.is_floating_point() or tensor.is_complex())


def broadcast(tensors: Iterable[Tensor], place: Place) -> None:
    if place.world_size == 1:
        return
    for tensor in tensors:
        # a collective wants contiguous memory, and channels_last is not
        flat = tensor.detach().contiguous()
        dist.broadcast(flat, src=0, group=place.group)
        tensor.detach().copy_(flat)


def model_tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def check_not_wrapped(model: nn.Module) -> None:
    if isinstance(model, DistributedDataParallel):
        raise TopoutError(
            "The model is wrapped in DistributedDataParallel.",
            why="Its gradients are averaged each step already, so rare averages would save nothing.",
            do="pass the model itself: ddp.module",
        )
