"""Checkpoints of a mesh that any other mesh can go on from.

Every tensor is saved once, under its name in the whole model, by a rank that holds it or as the shards that several
hold; which names there are is read from the checkpoint's manifest, not from one rank's list. The files, their
checksums and the writing are those of `topout.train.checkpoint`. Random numbers go on in the mesh that drew them; any
other draws anew. Not for values that differ between rows: buffers (statistics of BatchNorm) are saved as the first row
has them.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from topout.epoch import randomness
from topout.schema.errors import TopoutError
from topout.train.checkpoint import Checkpoints, manifest, random_state
from topout.train.checkpoint.captured import Captured, Source
from topout.train.checkpoint.checkpoints import Restored
from topout.train.checkpoint.entries import entries_of
from topout.train.checkpoint.tree import decoded, encoded
from topout.train.mesh.axes import Axes
from topout.train.mesh.spec import MeshSpec
from topout.train.own_settings import own_groups
from topout.train.place import Place

_PLAIN: dict[str, Callable[[torch.Tensor], Any]] = {"int": int, "float": float, "bool": bool, "none": lambda _: None}


class MeshCheckpoints(Checkpoints):
    """`Checkpoints` of a model and an optimizer whose parts are spread over a mesh, and of `more` as ever."""

    def __init__(
        self, folder: str | Path, *, model: "ModelEntry", optimizer: "OptimizerStateEntry", place: Place,
        axes: Axes, more: Mapping[str, Any], settle: Callable[[], None], **options: Any,
    ) -> None:  # fmt: skip
        state = {"model": _Spread(settle), "optimizer": _Spread(), **more}
        super().__init__(folder, state=state, place=place, **options)
        self._has_counted = True  # the trainer says how many steps it has taken
        self._entries = [model, optimizer, *(entries_of(more) if more else [])]
        self._model, self._axes = model, axes

    def restore(self) -> Restored | None:
        restored = super().restore()
        if restored is not None:
            self._part_random_numbers(restored)
        return restored

    def _part_random_numbers(self, restored: Restored) -> None:
        """Of another mesh they were others' than this rank's tp peers', whose dropout must be the same."""
        spec, saved = self._model.spec, self._model.saved_sizes
        is_other_world = restored.saved_by_ranks != spec.num_ranks
        is_same_mesh = saved == spec.sizes() or (saved is None and spec.tp == 1)
        if is_same_mesh and not is_other_world:
            return
        seed = manifest.read(restored.folder).seed
        # Python's and NumPy's, by which rows and peers choose their samples alike
        random_state.reseeded(seed, restored.step, 0)
        # torch's alone, as at the start
        number = self._axes.rows.rank * spec.pp + self._axes.pp_rank
        torch.manual_seed(randomness.key(seed, restored.step, number) % 2**63)
        if not is_other_world:
            self._say("it was not saved in this mesh: random numbers are drawn anew from the seed")

    def wait(self) -> None:
        """Until the checkpoint in flight is safe."""
        self._settle()


class _Spread:
    """Stands in the state for what the entries below hold; `settle` is asked before a checkpoint is taken."""

    def __init__(self, settle: Callable[[], None] | None = None) -> None:
        self.settle = settle

    def state_dict(self) -> dict[str, Any]:
        raise AssertionError("captured by an entry of its own")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        raise AssertionError("loaded by an entry of its own")


class ModelEntry:
    name = "model"

    def __init__(
        self, parameters: Mapping[str, Any], buffers: Mapping[str, Any], *, spec: MeshSpec, whole: set[str],
        saves_buffers: bool,
    ) -> None:  # fmt: skip
        self.spec = spec
        self.saved_sizes: dict[str, int] | None = None
        """Of the mesh that the checkpoint read last was saved in; None where it does not say."""
        self._parameters, self._buffers = dict(parameters), dict(buffers)
        self._whole = whole
        self._saves_buffers = saves_buffers

    def capture(self, into: Captured) -> None:
        for name, parameter in self._parameters.items():
            into.put(f"model.{name}", parameter.detach(), is_shared=True)
        if self._saves_buffers:
            for name, buffer in self._buffers.items():
                into.put(f"model.{name}", buffer.detach(), is_shared=True)
        into.trees[self.name] = {"names": sorted(self._whole), "mesh": self.spec.sizes()}

    def ask(self, tree: Any, source: Source) -> None:
        self.saved_sizes = tree.get("mesh")
        saved = {name.removeprefix("model.") for name in source.sizes if name.startswith("model.")}
        missing, foreign = sorted(self._whole - saved), sorted(saved - self._whole)
        wrong = [f"missing in the checkpoint: {_some(missing)}"] if missing else []
        wrong += [f"not in the model: {_some(foreign)}"] if foreign else []
        own = {**self._parameters, **self._buffers}
        for name in [] if wrong else own:
            size = source.sizes[f"model.{name}"][0]
            if size != own[name].shape:
                wrong.append(f"{name} is {tuple(own[name].shape)}, saved {tuple(size)}")
            source.into(f"model.{name}", own[name].detach())
        if wrong:
            raise TopoutError(
                "The checkpoint was saved from another model.",
                why="; ".join(wrong[:5]) + ".",
                do="build the model as it was when it was saved, or use another folder",
            )

    def load(self) -> None:
        """Filled in place."""


class OptimizerStateEntry:
    name = "optimizer"

    def __init__(self, optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> None:
        self.optimizer, self._names = optimizer, names
        self._state: dict[str, dict[str, Any]] = {}
        self._kinds: dict[tuple[str, str], str] = {}
        self._groups: list[dict[str, Any]] = []

    def capture(self, into: Captured) -> None:
        for parameter, state in self.optimizer.state.items():
            for key, value in state.items():
                path = f"optimizer.state.{self._names[id(parameter)]}.{key}"
                named, tensor = (path, value) if isinstance(value, torch.Tensor) else _as_tensor(path, value)
                into.put(named, tensor.detach(), is_shared=True)
        groups = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        into.trees[self.name] = {
            "kind": type(self.optimizer).__qualname__,
            "groups": encoded(groups, "optimizer.param_groups", lambda path, t: into.put(path, t, is_shared=False)),
        }

    def ask(self, tree: Any, source: Source) -> None:
        self._groups = decoded(tree["groups"], source.fresh)
        kind = type(self.optimizer).__qualname__
        if tree["kind"] != kind or len(self._groups) != len(self.optimizer.param_groups):
            raise TopoutError(
                "The checkpoint was saved from another optimizer.",
                why=f"It was {tree['kind']} with {len(self._groups)} groups of parameters, and is {kind} with "
                f"{len(self.optimizer.param_groups)}.",
                do="build the optimizer as it was when it was saved, or use another folder",
            )
        for options, chosen in zip(self._groups, own_groups(self.optimizer), strict=True):
            # which kernels are used is this run's choice, and a group that mixes layouts has none of them;
            # which parameters a stage has is its mesh's
            options.pop("param_names", None)
            options |= {name: chosen[name] for name in ("fused", "foreach", "param_names") if name in chosen}
        own = {self._names[id(p)]: p for group in self.optimizer.param_groups for p in group["params"]}
        self._state, self._kinds = {}, {}
        for stored in source.sizes:
            name, _, key = stored.removeprefix("optimizer.state.").rpartition(".")
            if not stored.startswith("optimizer.state.") or name not in own:
                continue
            key, _, plain = key.partition(":")
            make = source.fresh if plain else partial(source.fresh, like=own[name].detach())
            self._state.setdefault(name, {})[key] = make(stored)
            self._kinds[name, key] = plain

    def load(self) -> None:
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        number_of = {id(parameter): number for number, parameter in enumerate(parameters)}
        state = {}
        for parameter in parameters:
            name = self._names[id(parameter)]
            kept = self._state.get(name)
            if kept is not None:
                kinds = {key: self._kinds[name, key] for key in kept}
                state[number_of[id(parameter)]] = {k: _PLAIN[kinds[k]](v) if kinds[k] else v for k, v in kept.items()}
        groups = [
            {**options, "params": [number_of[id(p)] for p in group["params"]]}
            for options, group in zip(self._groups, self.optimizer.param_groups, strict=True)
        ]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        for number, kept in state.items():
            for key, value in kept.items():
                now = self.optimizer.state[parameters[number]].get(key)
                if isinstance(now, torch.Tensor) and now.dtype != value.dtype:
                    # torch casts state to the parameter's type: float32 moments of bfloat16 weights would lose bits
                    self.optimizer.state[parameters[number]][key] = value.to(now.device)
        self._state, self._kinds, self._groups = {}, {}, []


def _as_tensor(path: str, value: Any) -> tuple[str, torch.Tensor]:
    """A plain value as a tensor of no dimension whose name says what it was: other ranks find tensors only."""
    for kind, dtype in ((bool, torch.bool), (int, torch.int64), (float, torch.float64)):
        if isinstance(value, kind):
            return f"{path}:{kind.__name__}", torch.tensor(value, dtype=dtype)
    if value is None:
        return f"{path}:none", torch.zeros((), dtype=torch.bool)
    raise TopoutError(
        f"{path} cannot be saved: it is a {type(value).__qualname__}.",
        why="An optimizer's state over a mesh is tensors, numbers and None.",
        do="use another optimizer, or save in a mesh without pp, tp and fsdp by topout.train.checkpoint",
    )


def _some(names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
