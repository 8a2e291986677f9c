"""What `topout.init()` gives a script: its place among the ranks, and the few calls that make an ordinary loop scale.

    ctx = topout.init()
    model, optimizer, loader = ctx.wrap(model, optimizer, loader)
    for x, y in loader: ...                     # unchanged

Ordinary objects come back: a DDP module, the same optimizer, a DataLoader. In a world of one, model and optimizer come
back as they were.
"""

import gc
import socket
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from topout.schema.counted import counted
from topout.schema.errors import TopoutError
from topout.train.buckets.autotune import Autotune
from topout.train.buckets.regroup import Hook
from topout.train.buckets.remembered import Remembered
from topout.train.compression import install, make
from topout.train.dealing import DEALT, Dealing, DealtLoaders
from topout.train.early_update import EarlyUpdate
from topout.train.exchange import gather
from topout.train.forward_overlap import ForwardOverlap, check_overlap
from topout.train.fused import fuse, has_sparse_gradients, pays
from topout.train.parallel import data_parallel, fingerprint
from topout.train.partial_step import check_kind
from topout.train.place import Place
from topout.train.prepared.update import PreparedUpdate, prepared_update
from topout.train.wrap_checks import check_choices, check_optimizer, check_same_choices
from topout.train.wrapped import Wrapped, tell_replaced

if TYPE_CHECKING:
    from topout.train.checkpoint import Checkpoints
    from topout.train.mesh import Trainer
    from topout.train.noise_scale import NoiseScale


class Context:
    """One for each process; `close` leaves the process group when the context made it."""

    def __init__(self, place: Place, *, seed: int = 0, owns_group: bool = False) -> None:
        self.place = place
        self.seed = seed
        self._owns_group = owns_group
        self._wrapped: list[Wrapped] = []
        self._num_wrapped = 0
        self._overlap_references: list[weakref.ref[ForwardOverlap]] = []
        self._has_overlapped = False
        self._checkpoints: list[Checkpoints] = []
        self._dealing = Dealing()
        self.tuning: Autotune | None = None
        """How gradients of the model wrapped last are grouped; None where that was not left to be chosen."""

    @property
    def rank(self) -> int:
        return self.place.rank

    @property
    def world_size(self) -> int:
        return self.place.world_size

    @property
    def local_rank(self) -> int:
        return self.place.local_rank

    @property
    def device(self) -> torch.device:
        return self.place.device

    @property
    def is_first(self) -> bool:
        """Whether to print and to write what is wanted once."""
        return self.place.is_first

    def wrap(
        self,
        model: Any,
        optimizer: Any = None,
        loader: Any = None,
        *,
        buckets: str | float = "auto",
        compress: str | None = None,
        find_unused_parameters: bool = False,
        fused_optimizer: bool = True,
        early_update: bool | None = None,
        overlap_forward: bool = False,
        own_share: bool = False,
    ) -> Any:
        """What was given, ready for this rank: one object for one, else a tuple in the same order.

        Once for each model, where there are several; again where layers were unfrozen or added.
        `buckets`: "auto" measures and chooses within 50 steps, "default" leaves DDP's, a number is a limit in MiB.
        `compress`: None averages as given; "auto" may choose bf16 where it makes the step shorter; or the name of one.
        `fused_optimizer`: torch's own fused kernels, among several ranks (the same but for rounding).
        `early_update`: None computes updates while later gradients travel, where that pays, and puts them in place at
        `step()`; True updates at once, which a loop that clips gradients must not have; False neither.
        `overlap_forward`: gradients travel on while the next forward runs; for slow links on CPUs (docs/step.md).
        `own_share`: the loader gives this rank its own part already.
        """
        check_choices(model, buckets, compress)
        check_same_choices(
            self.place, buckets=buckets, compress=compress, find_unused_parameters=find_unused_parameters,
            fused_optimizer=fused_optimizer, early_update=early_update, overlap_forward=overlap_forward,
        )  # fmt: skip
        if early_update or overlap_forward:
            check_kind(model, optimizer, compress, "overlap_forward" if overlap_forward else "early_update")
        if overlap_forward:
            check_overlap(model, optimizer, self.place, find_unused_parameters=find_unused_parameters)
        wrapped = data_parallel(
            model,
            self.place,
            find_unused_parameters=find_unused_parameters,
            bucket_cap_mb=None if isinstance(buckets, str) else buckets,
        )
        if optimizer is not None:
            check_optimizer(model, optimizer)
            may_fuse = fused_optimizer and wrapped is not model and not has_sparse_gradients(model)
            if may_fuse and pays(optimizer):
                # nothing hides the optimizer: it begins when the last gradient has come
                fuse(optimizer)
        early: EarlyUpdate | ForwardOverlap | None = None
        if wrapped is not model and overlap_forward:
            early = ForwardOverlap(optimizer, self.place)
        elif wrapped is not model and early_update:
            early = EarlyUpdate(optimizer, self.place)
        is_left_to_us = early is None and early_update is None and compress is None and buckets == "auto"
        prepared = prepared_update(wrapped, optimizer, self.place) if wrapped is not model and is_left_to_us else None
        compressor = None if wrapped is model else self._average(wrapped, buckets, compress, early, prepared)
        if isinstance(early, ForwardOverlap):
            early.watch(wrapped)
            self._overlap_references.append(weakref.ref(early))
            self._has_overlapped = True
        if loader is not None and not _takes_its_share(loader, self.place):
            loader = self._dealing.shard(loader, self.place, seed=self.seed, own_share=own_share)
        # one that deals out its samples by itself may have no position to keep
        kept = loader if callable(getattr(loader, "state_dict", None)) else None
        self._remember(model=wrapped, optimizer=optimizer, loader=kept, compression=compressor)
        given = [thing for thing in (wrapped, optimizer, loader) if thing is not None]
        return given[0] if len(given) == 1 else tuple(given)

    def evaluate(
        self, step: Callable[[Any], Any], loader: Iterable[Any], *, model: Any = None, own_share: bool = False
    ) -> dict[str, Any]:
        """Every sample once whatever the number of ranks, and the figures that one process would have.

        `loader` is the one that a single process would use, not wrapped, or this rank's own part of it with
        `own_share`; `step` says what to make of a batch (docs/evaluate.md). `model` rests in evaluation mode
        meanwhile; it may be left out where one was wrapped.
        """
        from topout.train.evaluate import evaluate

        models = [wrapped.model for wrapped in self._living()] if model is None else [model]
        if len(models) > 1:
            raise TopoutError(
                f"{len(models)} models were wrapped, and evaluate was not told which to evaluate.",
                why="The model rests in evaluation mode meanwhile, with rank 0's statistics.",
                do="evaluate(step, loader, model=model)",
            )
        own_share = own_share or _takes_its_share(loader, self.place)
        return evaluate(step, loader, self.place, model=models[0] if models else None, own_share=own_share)

    def checkpoint(
        self,
        folder: str | Path,
        *,
        every: int | str | None = "10m",
        keep: int = 3,
        keep_every: int | None = None,
        **more: Any,
    ) -> "Checkpoints":
        """Goes on from the newest good checkpoint in `folder`, where there is one, and saves from then on.

        What `wrap` was given is saved, a second model as model-2, a second loader of one as loader+2; `more` names
        what else is: schedule=, scaler=, anything with a state_dict. Call `step()` of the result after each optimizer
        step (docs/checkpoints.md).
        """
        from topout.train.checkpoint import Checkpoints

        parts = {name: part for wrapped in self._living() for name, part in wrapped.parts().items()}
        taken = [name for name, part in more.items() if parts.get(name, part) is not part]
        if taken:
            raise TopoutError(
                f"{taken[0]}= is the name of what wrap was given.",
                why="A checkpoint would hold the one under that name, and not the other.",
                do=f"another name, such as {taken[0]}_2=",
            )
        state = parts | more
        if state:
            state[DEALT] = DealtLoaders(self._dealing, self.place)
        made = Checkpoints(folder, state=state, place=self.place, every=every, keep=keep, keep_every=keep_every)
        made.restore()
        self._checkpoints.append(made)
        return made

    def noise_scale(
        self,
        *,
        batch_size: int | None = None,
        accumulate: int | None = None,
        every: int = 10,
        window: int = 50,
        scaler: Any = None,
    ) -> "NoiseScale":
        """Watches the gradient noise scale of what was wrapped (docs/noise-scale.md); `.value` is its estimate.

        `batch_size` is that of one backward on one rank, `accumulate` how many backwards a step has; both are found
        out where the loader was wrapped and there are several ranks.
        """
        from topout.train.noise_scale import NoiseScale

        if self._has_overlapped:
            raise TopoutError(
                "The gradient noise scale cannot be had with overlap_forward=True.",
                why="It is measured from gradients after backward, and there they still travel.",
                do="leave out overlap_forward=True; early_update=True may stay",
            )
        living = self._living()
        optimizers = [optimizer for wrapped in living for optimizer in wrapped.optimizers]
        if len(living) != 1 or len(optimizers) != 1:
            raise TopoutError(
                "There is no one model and optimizer whose gradients could be watched.",
                why=f"{counted(len(living), 'model')} and {counted(len(optimizers), 'optimizer')} were wrapped.",
                do="ctx.wrap(model, optimizer, loader) first; for several, topout.train.noise_scale.NoiseScale each",
            )
        loaders = living[0].loaders
        return NoiseScale(
            living[0].model,
            optimizers[0],
            self.place,
            batch_size=batch_size,
            # of several, nobody knows which batches make a step
            loader=loaders[0] if len(loaders) == 1 else None,
            accumulate=accumulate,
            every=every,
            window=window,
            scaler=scaler,
        )

    def hybrid(
        self,
        build_model: Callable[[], Any],
        loss: Callable[[Any, Any], Any],
        optimizer: Callable[[Any], torch.optim.Optimizer],
        *,
        mesh: Any,
        clip_norm: float | None = None,
        precision: str | None = None,
    ) -> "Trainer":
        """Trains over a mesh of replicas, shards, split layers and stages, which a TOML file describes.

        Where a model fits one device and larger batches still help, `wrap` is simpler and as fast (docs/hybrid.md).
        """
        from topout.train.mesh import hybrid

        return hybrid(
            self.place,
            build_model,
            loss,
            optimizer,
            mesh=mesh,
            clip_norm=clip_norm,
            precision=precision,
            seed=self.seed,
        )

    def wait(self) -> None:
        """Parameters are up to date afterwards: before a script reads them itself, with `overlap_forward`."""
        for overlap in self._overlaps:
            overlap.wait()

    def close(self) -> None:
        """Checkpoints are finished before: their writers meet in the group that is left here."""
        self.wait()
        for checkpoints in self._checkpoints:
            checkpoints.close()
        self._checkpoints = []
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()
            self._owns_group = False

    @property
    def _overlaps(self) -> list[ForwardOverlap]:
        """Those that a model, an optimizer or gradients under way still need."""
        return [overlap for reference in self._overlap_references if (overlap := reference()) is not None]

    def _remember(self, **parts: Any) -> None:
        """Beside what the same model was wrapped with before, or in its place; what is not given again stays."""
        self._wrapped = [wrapped for wrapped in self._wrapped if wrapped.is_alive]
        former = next((wrapped for wrapped in self._wrapped if wrapped.is_of(parts["model"])), None)
        if former is None:
            self._num_wrapped += 1
            self._wrapped.append(Wrapped(self._num_wrapped, **parts))
            return
        before = former.optimizers
        former.add(**parts)
        replaced = [one for one in before if all(one is not kept for kept in former.optimizers)]
        if replaced and self.is_first:
            tell_replaced(replaced, parts["optimizer"])

    def _living(self) -> list[Wrapped]:
        """What scripts still have, in the order of wrapping, and the same on all ranks, which call this together."""
        if self._num_wrapped <= 1 and not any(wrapped.has_several for wrapped in self._wrapped):
            return [wrapped for wrapped in self._wrapped if wrapped.is_alive]
        # garbage is collected when it suits each rank; a model may become some when its optimizer is gone
        gc.collect()
        gc.collect()
        living = [wrapped for wrapped in self._wrapped if wrapped.is_alive]
        told = gather([name for wrapped in living for name in wrapped.living()], self.place)
        everywhere = set.intersection(*map(set, told))
        for wrapped in living:
            wrapped.keep(everywhere)
        return [wrapped for wrapped in living if wrapped.living()[0] in everywhere]

    def _average(
        self,
        ddp: Any,
        buckets: str | float,
        compress: str | None,
        early: EarlyUpdate | ForwardOverlap | None,
        prepared: PreparedUpdate | None,
    ) -> Any:
        """How gradients travel; the compressor where one was named, for it keeps what rounding has left over."""
        self.tuning = None
        if compress not in (None, "auto"):
            compressor = make(str(compress), self.place)
            install(ddp, compressor)
            return compressor
        if early is not None:
            ddp.register_comm_hook(*early.hook)
        if buckets != "auto":
            return None
        sharing = ranks_by_host(self.place)
        hooks = {"bf16": self._hook("bf16", ddp.module)} if compress == "auto" else {}
        if not hooks and early is None and self.device.type == "cpu" and len(sharing) > 1 and max(sharing) > 1:
            # the same mean, each gradient between hosts once for a host; NCCL does so by itself
            hooks = {"hierarchical": self._hook("hierarchical", ddp.module)}
        backend = dist.get_backend(self.place.group)
        surroundings = f"{fingerprint(ddp.module)} {sharing} {backend} {torch.__version__} {compress}"
        if early is not None:
            surroundings += f" {early.NAME}"
        elif prepared is None:
            surroundings += " late"
        plain = None if early is None else early.hook
        memory = Remembered(surroundings)
        self.tuning = Autotune(ddp, self.place, hooks=hooks, plain=plain, prepared=prepared, remembered=memory)
        return None

    def _hook(self, name: str, model: Any) -> Callable[[], Hook]:
        return lambda: (None, make(name, self.place, model).hook)


def ranks_by_host(place: Place) -> list[int]:
    """How many ranks each host has; one host where names do not tell hosts apart, as in containers."""
    told = gather([socket.gethostname(), place.local_world_size], place)
    names = [name for name, _ in told]
    if any(names.count(name) != size for name, size in told):
        return [place.world_size]
    return sorted(names.count(name) for name in set(names))


def _takes_its_share(loader: Any, place: Place) -> bool:
    """As `topout.Loader` does, which asks the process group itself."""
    if isinstance(loader, DataLoader):
        return False
    world_size = getattr(loader, "world_size", None)
    if world_size is not None and world_size != place.world_size:
        raise TopoutError(
            f"The loader deals out to {world_size} ranks, and this world has {place.world_size}.",
            why="It was made before the ranks had joined, or with a world_size of its own.",
            do="call topout.init() before the loader is made",
        )
    return world_size is not None
