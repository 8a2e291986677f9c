"""Prepares a rank before the script's first line, so that torch itself does what data-parallel training needs.

Nothing is imported here before the script imports torch. What is changed: loaders, backward, optimizers, modes of
modules, saving, and the calls of scripts that join ranks themselves.
"""

import functools
import itertools
import os
import random
from pathlib import Path
from types import ModuleType
from typing import Any

from topout.record.imports import call_after_import

VARIABLE = "TOPOUT_DDP"
_sessions: list[Any] = []
"""Of this rank, once its script has imported torch."""


def install() -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return
    _show_own_gpu()
    seed = _common_seed()
    random.seed(seed)
    passes = _Passes()
    # inside the recorder's tap: the wait for gradients is part of backward, as it is with DDP
    call_after_import({"torch.autograd": [passes.wrap]}, before_others=True)
    call_after_import(
        {
            "numpy.random": [lambda module: _seed_numpy(module, seed)],
            "torch": [lambda module: _prepare(module, passes)],
        }
    )


def script_ended() -> None:
    """What only the end shows; raises TopoutError as the script's own lines do."""
    for session in _sessions:
        session.script_ended()


def _common_seed() -> int:
    """The same on all ranks of a run and another in the next: unseeded ranks begin as one process would."""
    import zlib

    return zlib.crc32(":".join(os.environ.get(name, "") for name in _OF_THE_RUN).encode())


_OF_THE_RUN = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")


def _seed_numpy(module: ModuleType, seed: int) -> None:
    """Generators without a seed, too; not in children, where all workers of a loader would draw the same."""
    module.seed(seed)
    original = module.default_rng
    made = itertools.count(1)
    of_rank = os.getpid()

    @functools.wraps(original)
    def default_rng(given: Any = None) -> Any:
        return original([seed, next(made)] if given is None and os.getpid() == of_rank else given)

    module.__dict__["default_rng"] = default_rng


def _show_own_gpu() -> None:
    """A script for one device says `cuda` or `cuda:0`; each rank's is then its own."""
    local_rank, num_local = (int(os.environ.get(name, "0")) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        folder = Path("/proc/driver/nvidia/gpus")
        gpus = [str(number) for number in range(len(list(folder.iterdir())))] if folder.is_dir() else []
    else:
        gpus = [name for name in visible.split(",") if name.strip()]
    if len(gpus) >= num_local > 0:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[local_rank]


def _prepare(torch: ModuleType, passes: "_Passes") -> None:
    from topout.train.parallelise import loaders, saving
    from topout.train.parallelise.session import Session

    session = Session()
    if not session.is_on:
        return
    found: Any = torch
    found.manual_seed(_common_seed())
    _sessions.append(session)
    loaders.install(session)
    passes.session = session
    _follow_optimizers(found, session)
    _follow_modes(found, session)
    saving.save_once(found, session)
    _leave_others_alone(found, session)


class _Passes:
    """Averages gradients at the end of every backward pass; wrapped while torch is not whole, and so no session is."""

    def __init__(self) -> None:
        self.session: Any = None
        self._is_inside = False

    def wrap(self, autograd: ModuleType) -> None:
        original = autograd.backward

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            session = self.session
            if session is None or not session.is_on or self._is_inside:
                # activation checkpointing calls it for its parts, on whatever thread: the outermost one is the script's
                return original(*args, **kwargs)
            session.before_backward()
            self._is_inside = True
            try:
                result = original(*args, **kwargs)
            finally:
                self._is_inside = False
            session.after_backward()
            return result

        from torch._compile import _disable_dynamo

        # within a compiled step its collectives would become part of a graph, which waits for them when it likes
        setattr(autograd, original.__name__, _disable_dynamo(backward))


def _follow_optimizers(torch: Any, session: Any) -> None:
    optimizer_class = torch.optim.Optimizer
    original = optimizer_class.__init__

    @functools.wraps(original)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        session.follow(self)

    optimizer_class.__init__ = initialise

    def before_step(optimizer: Any, args: Any, kwargs: Any) -> Any:
        session.steps_in_child()
        if not session.is_on or not session.has_begun:
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            session.before_step(optimizer)
            return None
        return _with_closure(torch, session, optimizer, closure)

    from torch.optim.optimizer import register_optimizer_step_pre_hook

    register_optimizer_step_pre_hook(torch._disable_dynamo(before_step))
    _average_plateaus(torch, session)


def _with_closure(torch: Any, session: Any, optimizer: Any, closure: Any) -> Any:
    from topout.schema.errors import TopoutError
    from topout.train.parallelise.lines import script_line

    if isinstance(optimizer, torch.optim.LBFGS):
        raise TopoutError(
            f"LBFGS at {script_line()} cannot be made data-parallel.",
            why="it searches along a line by the loss, which is of each rank's own batch: ranks would part ways",
            do="topout run -n 1, or another optimizer",
        )

    def run() -> Any:
        loss = closure()
        session.before_step(optimizer)
        return loss

    return (optimizer,), {"closure": run}


def _average_plateaus(torch: Any, session: Any) -> None:
    """A schedule that follows the training loss must follow that of all ranks, or learning rates part ways."""
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau
    original = scheduler.step

    @functools.wraps(original)
    def step(self: Any, metrics: Any, *args: Any, **kwargs: Any) -> Any:
        if session.is_on and session.has_begun:
            session.refuse_untrained()
            metrics = session.mean(float(metrics))
        return original(self, metrics, *args, **kwargs)

    scheduler.step = step


def _follow_modes(torch: Any, session: Any) -> None:
    original = torch.nn.Module.train
    depth = [0]

    @functools.wraps(original)
    def train(self: Any, mode: bool = True) -> Any:
        depth[0] += 1
        try:
            result = original(self, mode)
        finally:
            depth[0] -= 1
        # children follow their parent; only the outermost call is the script's
        if depth[0] == 0:
            session.mode_changed(self, is_training=mode)
        return result

    torch.nn.Module.train = train


def _leave_others_alone(torch: Any, session: Any) -> None:
    import torch.distributed as dist

    from topout.schema.errors import TopoutError
    from topout.train.parallelise.lines import script_line

    original = dist.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        if not session.is_joining:
            session.stand_aside(f"{script_line()} joins the ranks itself")
        return original(*args, **kwargs)

    dist.init_process_group = init_process_group
    dist.distributed_c10d.init_process_group = init_process_group

    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        raise TopoutError(
            f"{script_line()} uses nn.DataParallel, which drives several GPUs from one process.",
            why="with --ddp every rank has a GPU of its own",
            do="leave nn.DataParallel out, or topout run -n 1 without --ddp",
        )

    torch.nn.DataParallel.__init__ = refuse

    share = torch.nn.Module.share_memory

    @functools.wraps(share)
    def share_memory(self: Any) -> Any:
        session.refuse_sharing()
        return share(self)

    torch.nn.Module.share_memory = share_memory
