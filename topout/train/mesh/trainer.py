"""One model trained over a mesh of ranks: `step` is the loop's body, whatever the mesh.

    trainer = ctx.hybrid(build_model, loss, optimizer=lambda parameters: AdamW(parameters, 3e-4), mesh="mesh.toml")
    for inputs, targets in trainer.shard(loader):
        value = trainer.step(inputs, targets)

Not for loops that need gradients between backward and the optimizer, or several models at once: `ctx.wrap` leaves those
to the script.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from topout.schema.errors import TopoutError
from topout.train.dealing import Dealing
from topout.train.exchange import gather
from topout.train.finite import FiniteLoss
from topout.train.mesh import memory
from topout.train.mesh.averaging import Averaging
from topout.train.mesh.axes import Axes, coordinates
from topout.train.mesh.batch import BatchAgreement, check_divides
from topout.train.mesh.gradient_norm import clip, total_norm
from topout.train.mesh.pipeline import Pipeline
from topout.train.mesh.resume import MeshCheckpoints, ModelEntry, OptimizerStateEntry
from topout.train.mesh.spec import MeshSpec
from topout.train.mesh.stage import Stage
from topout.train.place import Place

LOSSES_BETWEEN_LOOKS = 50


class Trainer:
    """Made by `hybrid`; all ranks call its methods alike."""

    def __init__(
        self,
        spec: MeshSpec,
        place: Place,
        axes: Axes,
        *,
        stages: Sequence[Stage],
        loss: Callable[[Any, Any], Any],
        optimizer: torch.optim.Optimizer,
        names: set[str],
        clip_norm: float | None,
        seed: int,
    ) -> None:
        self.spec, self.place = spec, place
        self.stages, self.optimizer = tuple(stages), optimizer
        self.num_steps = 0
        self.gradient_norm: torch.Tensor | None = None
        """Of the last step, before clipping; None where nothing is clipped."""
        self.pipeline: Pipeline | None = None
        self._axes, self._loss, self._names = axes, loss, names
        self._clip_norm, self._seed = clip_norm, seed
        self._parameters = {name: parameter for stage in stages for name, parameter in stage.named()}
        self._weight = 1.0
        self._batches = BatchAgreement(spec, place)
        averages = spec.num_rows > 1 and spec.fsdp == 1
        self._averaging = Averaging(list(self._parameters.values()), axes.rows) if averages else None
        self._finite = FiniteLoss(place, LOSSES_BETWEEN_LOOKS)
        self._kept: dict[Path, MeshCheckpoints] = {}
        self._dealing = Dealing()

    @property
    def row(self) -> int:
        """Which share of the global batch this rank takes, of `num_rows`."""
        return self._axes.rows.rank

    @property
    def num_rows(self) -> int:
        return self.spec.num_rows

    def named_parameters(self) -> dict[str, Any]:
        """What this rank holds, by names in the whole model."""
        return dict(self._parameters)

    def shard(self, loader: DataLoader, *, own_share: bool = False) -> DataLoader:
        """This row's share of every global batch; batch_size is samples a row, as under DDP.

        `own_share`: the loader gives this row its own part already.
        """
        from topout.train.sharding import index_source

        if not isinstance(loader, DataLoader):
            raise TopoutError(
                f"{type(loader).__name__} is no DataLoader.",
                why="Its samples cannot be dealt out to the rows of a mesh.",
                do=f"pass a torch DataLoader, or let it deal out by row {self.row} of {self.num_rows} itself",
            )
        if own_share:
            return self._dealing.shard(loader, self._axes.rows, seed=self._seed, own_share=True)
        _, batch_size, drop_last = index_source(loader)
        if batch_size is not None and self.spec.num_microbatches > 1:
            check_divides(batch_size, self.spec)
            if not drop_last and len(loader.dataset) % (batch_size * self.num_rows):
                raise TopoutError(
                    f"{len(loader.dataset)} samples leave a smaller batch at the end of an epoch.",
                    why=f"It would not divide into {self.spec.num_microbatches} microbatches.",
                    do="make the loader with drop_last=True",
                )
        return self._dealing.shard(loader, self._axes.rows, seed=self._seed)

    def step(self, inputs: Any, targets: Any) -> torch.Tensor:
        """Forward, backward and optimizer; the mean loss of the global batch, equal on all ranks."""
        inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        self._weight = self._batches.weight(inputs, targets)
        inputs, targets = self._moved(inputs, targets)
        losses = self._plain(inputs, targets) if self.pipeline is None else self.pipeline.step(inputs, targets)
        if self._averaging is not None:
            self._averaging.finish()
        if self._clip_norm is not None:
            self.gradient_norm = total_norm(self._parameters.values(), self.spec, self.place)
            clip(self._parameters.values(), self.gradient_norm, self._clip_norm)
        self.optimizer.step()
        self.num_steps += 1
        if self.num_steps == 1:
            self._tell_memory()
        self.optimizer.zero_grad(set_to_none=True)
        value = self._mean(losses)
        self._finite.add(value, self.num_steps)
        return value

    def evaluate(self, inputs: Any, targets: Any) -> torch.Tensor:
        """The mean loss of a global batch, without learning from it; the model rests in evaluation mode meanwhile."""
        inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        self._weight = self._batches.weight(inputs, targets)
        inputs, targets = self._moved(inputs, targets)
        was_training = [stage.training for stage in self.stages]
        for stage in self.stages:
            stage.eval()
        try:
            if self.pipeline is not None:
                return self._mean(self.pipeline.evaluate(inputs, targets))
            with torch.no_grad():
                return self._mean([self.measured(self.stages[0](*inputs), targets)])
        finally:
            for stage, mode in zip(self.stages, was_training, strict=True):
                stage.train(mode)

    def measured(self, outputs: Any, targets: Any) -> torch.Tensor:
        """A microbatch's loss, as this row's samples count in the global batch."""
        with self.stages[-1].computing():
            value = self._loss(outputs, targets)
        if not isinstance(value, torch.Tensor) or value.dim():
            raise TopoutError(
                f"The loss is a {tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__}.",
                why="It is the mean over the samples of a batch: a tensor of no dimension.",
                do="return for instance functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())",
            )
        return value if self._weight == 1.0 else value * self._weight

    def memory(self) -> list[dict[str, int]]:
        """Bytes that each rank holds; all ranks together."""
        return gather(memory.held_bytes(self._parameters.values(), self.optimizer, self.place.device), self.place)

    def settle(self) -> None:
        """Raises on all ranks where a loss since the last look was not finite."""
        self._finite.settle()

    def save(self, folder: str | Path) -> None:
        """Returns when it is safe; any mesh can go on from it."""
        checkpoints = self._checkpoints(Path(folder))
        checkpoints.num_steps = self.num_steps
        checkpoints.save()
        checkpoints.wait()

    def restore(self, folder: str | Path) -> int | None:
        """The number of steps that the newest good checkpoint has taken; None where there is none yet."""
        restored = self._checkpoints(Path(folder)).restore()
        if restored is None:
            return None
        self.num_steps = restored.step
        return restored.step

    def checkpoint(self, folder: str | Path, *, every: int | str | None = "10m", **more: Any) -> MeshCheckpoints:
        """Goes on from the newest good one, and saves from then on: call `step()` of it after each step.

        `more` names what else is saved: loader=, schedule=, anything with a state_dict.
        """
        earlier = self._kept.pop(Path(folder), None)
        if earlier is not None:
            # of `save` or `restore`, which know nothing of these options
            earlier.close()
        made = self._checkpoints(Path(folder), every=every, more=more)
        restored = made.restore()
        self.num_steps = self.num_steps if restored is None else restored.step
        return made

    def close(self) -> None:
        for checkpoints in self._kept.values():
            checkpoints.close()
        self._kept = {}

    def _checkpoints(
        self, folder: Path, *, every: int | str | None = None, more: Mapping[str, Any] | None = None
    ) -> MeshCheckpoints:
        if folder in self._kept:
            return self._kept[folder]
        buffers = {name: b for stage in self.stages for name, b in stage.persistent_buffers().items()}
        is_first_of_stage = self.row == 0 and self._axes.tp_rank == 0
        model = ModelEntry(
            self._parameters, buffers, spec=self.spec, whole=self._names, saves_buffers=is_first_of_stage
        )
        named = {id(parameter): name for name, parameter in self._parameters.items()}
        optimizer = OptimizerStateEntry(self.optimizer, named)
        self._kept[folder] = MeshCheckpoints(
            folder, model=model, optimizer=optimizer, place=self.place, axes=self._axes, more=more or {},
            settle=self.settle, every=every,
        )  # fmt: skip
        return self._kept[folder]

    def _moved(self, inputs: tuple[Any, ...], targets: Any) -> tuple[tuple[Any, ...], Any]:
        device = self.place.device
        return tuple(t.to(device, non_blocking=True) for t in inputs), targets.to(device, non_blocking=True)

    def _plain(self, inputs: tuple[torch.Tensor, ...], targets: torch.Tensor) -> list[torch.Tensor]:
        """Without stages, microbatches are gradients added up."""
        count, stage, losses = self.spec.num_microbatches, self.stages[0], []
        shares = zip(zip(*(value.chunk(count) for value in inputs), strict=True), targets.chunk(count), strict=True)
        for number, (some, wanted) in enumerate(shares, start=1):
            is_last = number == count
            if self.spec.fsdp > 1:
                stage.set_requires_gradient_sync(is_last)
                stage.set_is_last_backward(is_last)
            value = self.measured(stage(*some), wanted)
            if is_last and self._averaging is not None:
                self._averaging.arm()
            (value / count if count > 1 else value).backward()
            losses.append(value.detach())
        return losses

    def _mean(self, losses: Sequence[torch.Tensor]) -> torch.Tensor:
        """Over rows and microbatches; ranks without the last stage add nothing."""
        value = torch.zeros((), device=self.place.device)
        if losses:
            value += torch.stack([loss.detach().float() for loss in losses]).mean()
        if self.place.world_size > 1:
            value /= self.spec.num_rows * self.spec.tp
            dist.all_reduce(value, group=self.place.group)
        return value

    def _tell_memory(self) -> None:
        held = self.memory()
        memory.record(held[self.place.rank])
        if self.place.is_first and self.place.world_size > 1:
            shown = [name for name, size in self.spec.sizes().items() if size > 1]
            places = []
            for rank in range(self.place.world_size):
                at = coordinates(self.spec, rank)
                places.append(" ".join(f"{name} {at[name]}" for name in shown))
            sys.stderr.write("topout: memory held by each rank\n" + memory.table(held, places) + "\n")
