"""An optimizer's state under the names of its parameters, so that other ranks, other shards and another order find it.

torch's own `get_optimizer_state_dict` takes a step with zero gradients where there is no state yet, which hooks and
counters would see; and it walks the model each time. Renaming `state_dict()` needs neither.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from topout.schema.errors import TopoutError
from topout.train.checkpoint.captured import Captured, Source
from topout.train.checkpoint.tree import decoded, encoded
from topout.train.own_settings import own_groups


class OptimizerEntry:
    """`names` says what the parameters are called by id; it is asked each time, since layers may come and go.

    With `as_once` it says what older checkpoints call them.
    `is_own`: every rank trains by itself, so that its momenta are no other rank's.
    """

    def __init__(
        self,
        name: str,
        optimizer: torch.optim.Optimizer,
        names: Callable[..., dict[int, str]],
        *,
        is_own: bool = False,
    ) -> None:
        self.name, self.optimizer, self._names, self._is_own = name, optimizer, names, is_own
        self._loaded: dict[str, Any] = {}
        self._rooms: list[tuple[torch.Tensor, str, torch.Tensor]] = []

    def _parameters(self) -> list[torch.Tensor]:
        """In the order in which state_dict() numbers them."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def capture(self, into: Captured) -> None:
        state = self.optimizer.state_dict()
        name_of = self._names()
        names = [name_of[id(parameter)] for parameter in self._parameters()]

        def put_state(path: str, tensor: torch.Tensor) -> str:
            return into.put(path, tensor, is_shared=not self._is_own)

        def put_own(path: str, tensor: torch.Tensor) -> str:
            return into.put(path, tensor, is_shared=False)

        of_parameters, of_all = {}, {}
        for key, value in state["state"].items():
            if isinstance(key, int) and not isinstance(key, bool):
                name = names[key]
                of_parameters[name] = encoded(value, f"{self.name}.state.{name}", put_state)
            else:  # what an optimizer keeps beside: not known to be equal on all ranks
                of_all[key] = value
        groups = [{**group, "params": [names[number] for number in group["params"]]} for group in state["param_groups"]]
        rest = {key: value for key, value in state.items() if key not in ("state", "param_groups")}
        into.trees[self.name] = {
            "kind": type(self.optimizer).__qualname__,
            "state": of_parameters,
            "groups": encoded(groups, f"{self.name}.param_groups", put_own),
            "beside": encoded({"state": of_all, "rest": rest}, f"{self.name}.beside", put_own),
        }

    def ask(self, tree: Any, source: Source) -> None:
        name_of, tree = self._fitted(tree)
        self._check(tree, name_of)
        parameters = self._parameters()
        number_of = {name_of[id(parameter)]: number for number, parameter in enumerate(parameters)}
        state: dict[Any, Any] = {}
        self._rooms = []
        for name, value in tree["state"].items():
            parameter = parameters[number_of[name]]
            state[number_of[name]] = decoded(value, partial(source.fresh, like=parameter.detach()))
            for key, kept in state[number_of[name]].items():
                if isinstance(kept, torch.Tensor):
                    self._rooms.append((parameter, key, kept))
        beside = decoded(tree["beside"], source.fresh)
        groups = decoded(tree["groups"], source.fresh)
        for group, own in zip(groups, own_groups(self.optimizer), strict=False):
            # which kernels are used is this run's choice
            group |= {name: own[name] for name in ("fused", "foreach") if name in own}
        for group in groups:
            group["params"] = [number_of[name] for name in group["params"]]
        self._loaded = {"state": {**state, **beside["state"]}, "param_groups": groups, **beside["rest"]}

    def load(self) -> None:
        self.optimizer.load_state_dict(self._loaded)
        for parameter, key, kept in self._rooms:
            now = self.optimizer.state[parameter].get(key)
            if isinstance(now, torch.Tensor) and now.dtype != kept.dtype:
                # torch casts state to the parameter's type: float32 moments of bfloat16 weights would lose bits
                self.optimizer.state[parameter][key] = kept.to(now.device)
        self._loaded, self._rooms = {}, []

    def _fitted(self, tree: Any) -> tuple[dict[int, str], Any]:
        """What parameters are called, now or once, and the tree under those names where it can be."""
        for name_of in (self._names(), self._names(as_once=True)):
            own = {name_of[id(parameter)] for parameter in self._parameters()}
            renamed = _under_own_names(tree, own)
            if own == _saved_names(renamed):
                return name_of, renamed
        return self._names(), tree

    def _check(self, tree: Any, name_of: dict[int, str]) -> None:
        saved_groups = [set(group["params"]) for group in tree["groups"]]
        groups = [{name_of[id(p)] for p in group["params"]} for group in self.optimizer.param_groups]
        have, saved = set().union(*groups), set().union(*saved_groups)
        why = []
        if have - saved:
            why.append(f"missing in the checkpoint: {_listed(have - saved)}")
        if saved - have:
            why.append(f"not in the optimizer: {_listed(saved - have)}")
        kind = type(self.optimizer).__qualname__
        if tree["kind"] != kind:
            options = {key for group in self.optimizer.param_groups for key in group}
            saved_options = {key for group in tree["groups"] for key in group}
            if options != saved_options:
                why.append(f"it was {tree['kind']} and is {kind}")
                why.append(f"missing in the checkpoint: {_listed(options - saved_options)}")
                why.append(f"not in the optimizer: {_listed(saved_options - options)}")
        if not why and groups != saved_groups:
            why.append(f"parameters are in {len(groups)} groups, saved in {len(saved_groups)}, or in other ones")
        if why:
            raise TopoutError(
                f"The checkpoint was saved from another {self.name}.",
                why="; ".join(why) + ".",
                do="build the optimizer as it was when it was saved, or use another folder",
            )


def _under_own_names(tree: Any, own: set[str]) -> Any:
    """Names begin with their module's where the state has several, and it may have had more or fewer then."""
    saved = _saved_names(tree)
    (firsts, more), (saved_firsts, saved_more) = _parted(own), _parted(saved)
    if len(saved_firsts) == 1 and saved_more == own:
        rename = {f"{saved_firsts[0]}.{name}": name for name in own}
    elif len(firsts) == 1 and more == saved:
        rename = {name: f"{firsts[0]}.{name}" for name in saved}
    else:
        return tree
    groups = [{**group, "params": [rename[name] for name in group["params"]]} for group in tree["groups"]]
    return {**tree, "state": {rename[name]: value for name, value in tree["state"].items()}, "groups": groups}


def _saved_names(tree: Any) -> set[str]:
    return {name for group in tree["groups"] for name in group["params"]}


def _listed(names: set[str], most: int = 5) -> str:
    shown = sorted(names)
    more = f" and {len(shown) - most} more" if len(shown) > most else ""
    return (", ".join(shown[:most]) + more) or "nothing"


def _parted(names: set[str]) -> tuple[list[str], set[str]]:
    """First parts of names, and what follows them."""
    return list({name.partition(".")[0] for name in names}), {name.partition(".")[2] for name in names}
