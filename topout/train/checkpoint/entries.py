"""The parts of a training that a checkpoint holds: modules, optimizers, and any object with a state_dict.

Names are those of the bare model: wrappers (DDP, compile, activation checkpointing) may come and go between runs.
Not for FSDP of the first kind, whose flat parameters have no names: `fully_shard` has.
"""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from topout.schema.errors import TopoutError
from topout.train.checkpoint.captured import Captured, Source
from topout.train.checkpoint.optimizer_entry import OptimizerEntry
from topout.train.checkpoint.tree import decoded, encoded
from topout.train.diloco import DiLoCo
from topout.train.local_sgd import LocalSGD

_EXTRA_STATE = "_extra_state"
"""How torch ends the name of what `get_extra_state` returns, which only the module itself understands."""
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")


class Entry(Protocol):
    name: str

    def capture(self, into: Captured) -> None: ...

    def ask(self, tree: Any, source: Source) -> None:
        """Says which tensors it needs, and where to; raises where the checkpoint does not fit."""

    def load(self) -> None:
        """The tensors have come."""


def entries_of(state: Mapping[str, Any]) -> list[Entry]:
    """Modules first: an optimizer's state hangs on their parameters' names."""
    # where ranks train apart all of it is each one's own: a moving average of their models is as well
    is_own = any(isinstance(part, (LocalSGD, DiLoCo)) for part in state.values())
    modules = [ModuleEntry(name, part, is_own=is_own) for name, part in state.items() if isinstance(part, nn.Module)]
    others: list[Entry] = []
    for name, part in state.items():
        if isinstance(part, nn.Module):
            continue
        if not callable(getattr(part, "state_dict", None)) or not callable(getattr(part, "load_state_dict", None)):
            raise TopoutError(
                f"state[{name!r}] is a {type(part).__qualname__}, which has no state.",
                why="A checkpoint asks each part for state_dict() and gives it back with load_state_dict().",
                do="pass an object that has both, or leave it out",
            )
        if isinstance(part, torch.optim.Optimizer) and _is_held(part, modules):
            others.append(OptimizerEntry(name, part, partial(_names_for, part, modules), is_own=is_own))
        else:
            others.append(ObjectEntry(name, part))
    return [*modules, *others]


def bare(module: nn.Module) -> nn.Module:
    """The model within DDP and torch.compile."""
    while True:
        if isinstance(module, DistributedDataParallel):
            module = module.module
        elif isinstance(getattr(module, "_orig_mod", None), nn.Module):
            module = module._orig_mod
        else:
            return module


def replica_of(module: nn.Module) -> DistributedDataParallel | None:
    """The DDP module around a model, and within torch.compile."""
    while not isinstance(module, DistributedDataParallel):
        if not isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):
            return None
        module = inner
    return module


def plain_names(module: nn.Module, *, as_once: bool = False) -> Callable[[str], str]:
    """Takes wrappers out of names within `module`: a moving average of a wrapped model has DDP inside.

    `as_once`: leaves that one in, as older checkpoints have it.
    """
    replicas = [name for name, part in module.named_modules() if isinstance(part, DistributedDataParallel)]
    inside = [] if as_once else sorted((f"{name}." for name in replicas), key=len, reverse=True)

    def plain(name: str) -> str:
        for prefix in inside:
            if name.startswith(prefix):
                name = prefix + name.removeprefix(prefix).removeprefix("module.")
        for wrapper in _WRAPPERS:
            name = name.replace(wrapper, "")
        return name

    return plain


def _is_held(optimizer: torch.optim.Optimizer, modules: list["ModuleEntry"]) -> bool:
    """Whether modules of the state have its parameters; an error where they have only some."""
    held = {id(parameter) for entry in modules for parameter in entry.parameters().values()}
    wanted = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    if wanted and held.isdisjoint(wanted):
        return False
    _names_for(optimizer, modules)
    return True


def _names_for(
    optimizer: torch.optim.Optimizer, modules: list["ModuleEntry"], *, as_once: bool = False
) -> dict[int, str]:
    """Names of an optimizer's parameters by id, as they are now: layers are added and replaced in mid-training."""
    names = {
        id(parameter): name if len(modules) == 1 else f"{entry.name}.{name}"
        for entry in reversed(modules)
        for name, parameter in entry.parameters(as_once=as_once).items()
    }
    wanted = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    num_missing = sum(number not in names for number in wanted)
    if num_missing:
        raise TopoutError(
            f"The optimizer trains {num_missing} parameters that no module of the checkpoint holds.",
            why="Only its momenta would be saved, and not these parameters, such as those of a loss that learns.",
            do="criterion = ctx.wrap(criterion) before ctx.checkpoint, which averages it over ranks as well; or "
            "ctx.checkpoint(..., criterion=criterion) where the script does that, or there is one rank",
        )
    return names


class ModuleEntry:
    def __init__(self, name: str, module: nn.Module, *, is_own: bool = False) -> None:
        self.name, self._module, self._is_own = name, bare(module), is_own
        if any(type(part).__name__ == "FullyShardedDataParallel" for part in module.modules()):
            raise TopoutError(
                f"state[{name!r}] is wrapped in FullyShardedDataParallel.",
                why="Its flat parameters have no names of their own, so other ranks could not read them.",
                do="shard it with torch.distributed.fsdp.fully_shard",
            )
        self._loaded: OrderedDict[str, Any] = OrderedDict()
        replica = replica_of(module)
        # which nobody but the script keeps
        self._replica = (lambda: None) if replica is None else weakref.ref(replica)

    @property
    def replica(self) -> DistributedDataParallel | None:
        """The DDP module that trains it, for as long as the script has one."""
        return self._replica()

    def parameters(self, *, as_once: bool = False) -> dict[str, nn.Parameter]:
        plain = plain_names(self._module, as_once=as_once)
        return {plain(name): parameter for name, parameter in self._module.named_parameters()}

    def capture(self, into: Captured) -> None:
        tree, plain = {}, plain_names(self._module)
        # keep_vars tells parameters from buffers
        for key, value in self._module.state_dict(keep_vars=True).items():
            name = plain(key)
            is_parameter = isinstance(value, nn.Parameter)
            put = partial(into.put, is_shared=is_parameter and not self._is_own)
            tree[name] = encoded(value, f"{self.name}.{name}", put)
            if is_parameter and value.requires_grad:
                into.trained.add(tree[name]["name"])
        into.trees[self.name] = tree

    def ask(self, tree: Any, source: Source) -> None:
        state = self._module.state_dict(keep_vars=True)
        plain, once = plain_names(self._module), plain_names(self._module, as_once=True)
        if set(map(once, state)) == set(tree):
            plain = once
        now = {plain(name): (name, value) for name, value in state.items()}
        _check_names(self.name, have=set(now), saved=set(tree))
        self._loaded = OrderedDict()
        if hasattr(state, "_metadata"):
            # versions of the layers' formats: without them load_state_dict takes what it gets for very old
            self._loaded._metadata = state._metadata  # type: ignore[attr-defined]
        wrong = []
        for name, (key, value) in now.items():
            if not isinstance(value, torch.Tensor) or key.rpartition(".")[2] == _EXTRA_STATE:
                # extra state may have had another size, or been no tensor
                device = value.device if isinstance(value, torch.Tensor) else None
                self._loaded[key] = decoded(tree[name], partial(source.fresh, device=device))
                continue
            stored = tree[name]["name"]
            size = source.sizes[stored][0]
            if size != value.shape:
                wrong.append(f"{name} is {tuple(value.shape)}, saved {tuple(size)}")
            else:
                self._loaded[key] = source.into(stored, value.detach())
        if wrong:
            raise TopoutError(
                f"{len(wrong)} tensors of {self.name} have another shape than in the checkpoint.",
                why=_some(wrong),
                do="build the model as it was when it was saved, or use another folder",
            )

    def load(self) -> None:
        # the tensors have been filled in place; this runs the module's own hooks and takes what is no tensor
        self._module.load_state_dict(self._loaded)
        self._loaded = OrderedDict()


class ObjectEntry:
    """A schedule, a scaler, a loader: its tensors are this rank's own."""

    def __init__(self, name: str, part: Any) -> None:
        self.name, self._part = name, part
        self._loaded: Any = None

    def capture(self, into: Captured) -> None:
        into.trees[self.name] = encoded(
            self._part.state_dict(), self.name, lambda path, tensor: into.put(path, tensor, is_shared=False)
        )

    def ask(self, tree: Any, source: Source) -> None:
        self._loaded = decoded(tree, source.fresh)

    def load(self) -> None:
        self._part.load_state_dict(self._loaded)
        self._loaded = None


def _check_names(entry: str, *, have: set[str], saved: set[str]) -> None:
    if have == saved:
        return
    parts = []
    if have - saved:
        parts.append(f"missing in the checkpoint: {_some(sorted(have - saved))}")
    if saved - have:
        parts.append(f"not in the model: {_some(sorted(saved - have))}")
    raise TopoutError(
        f"The checkpoint was saved from another {entry}.",
        why="; ".join(parts) + ".",
        do="build the model as it was when it was saved, or use another folder",
    )


def _some(names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
