"""Stages run by torch's schedules, one microbatch after another.

    gpipe                     all forwards, then all backwards
    1f1b                      backwards as soon as they can: fewer activations at once
    interleaved               several chunks of the model on each rank: a shorter bubble for more messages
    zero-bubble               two chunks, down the ranks and back; gradients of weights fill the bubble (ZBV)
    interleaved-zero-bubble   the same for interleaved chunks

Not for batches whose size changes from step to step: every new one is planned anew.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules

from topout.schema.errors import TopoutError
from topout.train.mesh.axes import Axes
from topout.train.mesh.parts import Part
from topout.train.mesh.shapes import Boundary, boundaries, computed_boundaries
from topout.train.mesh.spec import MeshSpec
from topout.train.mesh.stage import Stage

_CLASSES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "zero-bubble": "ScheduleZBVZeroBubble",
    "interleaved-zero-bubble": "ScheduleInterleavedZeroBubble",
}


class Pipeline:
    """This rank's stages. `loss` is given a microbatch's outputs and targets on the rank that has the last one."""

    def __init__(
        self,
        spec: MeshSpec,
        axes: Axes,
        stages: Sequence[Stage],
        loss: Callable[[Any, Any], Any],
        *,
        model: Any,
        parts: Sequence[Sequence[Part]],
        device: torch.device,
    ) -> None:
        self._spec, self._axes, self._device = spec, axes, device
        self._stages = dict(zip(spec.stages_of(axes.pp_rank), stages, strict=True))
        self._loss = loss
        self._model, self._parts = model, parts
        self._planned: dict[Any, Any] = {}
        self._shapes: dict[Any, list[Boundary]] = {}

    @property
    def has_first(self) -> bool:
        return 0 in self._stages

    @property
    def has_last(self) -> bool:
        return self._spec.num_stages - 1 in self._stages

    def step(self, inputs: tuple[torch.Tensor, ...], targets: torch.Tensor) -> list[torch.Tensor]:
        """Forward and backward; the losses of the microbatches, on the rank with the last stage."""
        key = tuple((tuple(t.shape), t.dtype) for t in inputs)
        shapes = self._boundaries(inputs)
        if key not in self._planned:
            self._planned[key] = self._schedule(shapes)
        run = self._planned[key].step
        losses: list[torch.Tensor] = []
        options: dict[str, Any] = {"losses": losses, "target": targets} if self.has_last else {}
        if "return_outputs" in inspect.signature(run).parameters:
            options["return_outputs"] = False
        run(*(inputs if self.has_first else ()), **options)
        return losses

    def evaluate(self, inputs: tuple[torch.Tensor, ...], targets: torch.Tensor) -> list[torch.Tensor]:
        """Forward alone: every microbatch from stage to stage. torch's own `eval` fails for schedules with chunks."""
        count, losses = self._spec.num_microbatches, []
        shapes = self._boundaries(inputs)
        batches = zip(zip(*(value.chunk(count) for value in inputs), strict=True), targets.chunk(count), strict=True)
        with torch.no_grad():
            for some, wanted in batches:
                outputs = self._through(some, shapes)
                if self.has_last:
                    losses.append(self._loss(outputs[0] if len(outputs) == 1 else outputs, wanted))
        return losses

    def _through(self, values: tuple[torch.Tensor, ...], shapes: Sequence[Boundary]) -> tuple[torch.Tensor, ...]:
        """The last stage's outputs where this rank has it. All ranks go by the same order, so none waits in a ring."""
        group, owners = self._axes.group("pp"), self._owners()
        for number, stage in self._stages.items():
            if number and owners[number - 1] != self._axes.pp_rank:
                values = tuple(torch.empty(t.shape, dtype=t.dtype, device=self._device) for t in shapes[number][0])
                for value in values:
                    dist.recv(value, group=group, group_src=owners[number - 1])
            result = stage(*values)
            values = result if isinstance(result, tuple) else (result,)
            if number + 1 < len(owners) and owners[number + 1] != self._axes.pp_rank:
                for value in values:
                    dist.send(value, group=group, group_dst=owners[number + 1])
        return values

    def _owners(self) -> list[int]:
        """The pp rank of every stage."""
        owners = {stage: rank for rank in range(self._spec.pp) for stage in self._spec.stages_of(rank)}
        return [owners[stage] for stage in range(self._spec.num_stages)]

    def _boundaries(self, inputs: tuple[torch.Tensor, ...]) -> list[Boundary]:
        """What passes between the stages, which are told what to send."""
        key = tuple((tuple(t.shape), t.dtype) for t in inputs)
        if key not in self._shapes:
            one = tuple(t[: t.shape[0] // self._spec.num_microbatches] for t in inputs)
            precision = next(iter(self._stages.values())).precision
            found = boundaries(self._model, self._parts, one, precision)
            if found is None:
                found = computed_boundaries(self._stages, self._owners(), one, self._axes.group("pp"))
            self._shapes[key] = found
        shapes = self._shapes[key]
        for number, stage in self._stages.items():
            stage.sends = tuple(t.dtype for t in shapes[number][1])
        return shapes

    def _schedule(self, shapes: list[Boundary]) -> Any:
        spec = self._spec
        made = []
        for number, stage in self._stages.items():
            # else torch would find them out by sending pickled objects
            known = {"input_args": shapes[number][0], "output_args": shapes[number][1]}
            group = self._axes.group("pp")
            made.append(pipelining.PipelineStage(stage, number, spec.num_stages, self._device, group=group, **known))
        kind = getattr(schedules, _CLASSES[spec.schedule], None)
        if kind is None:
            raise TopoutError(
                f"This torch, {torch.__version__}, has no schedule {spec.schedule}.",
                why=f"torch.distributed.pipelining has no {_CLASSES[spec.schedule]}.",
                do="schedule = '1f1b', or a newer torch",
            )
        is_single = spec.schedule in ("gpipe", "1f1b")
        return kind(made[0] if is_single else made, spec.num_microbatches, loss_fn=self._loss)
