"""The parameters of one group of gradients twice: as they are, and in other memory as they will be after the step.

    group = PreparedGroup(optimizer, parameters)
    if group.lay_out(settings) and group.prepare(gradients, settings, divisor):  # all is as before
        group.commit()

With their state. Parameters and state change their memory with `commit`, which costs no copy; whoever else holds that
memory (`is_alone`) would be left with what was there before.
"""

import sys
import weakref
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import torch

from topout.train.fused_fit import is_dense
from topout.train.fused_group import FusedGroup, Tensors, are_all_same, are_plain, are_same
from topout.train.partial_step import Settings, as_kernels_read_it
from topout.train.prepared.parameter_data import unasked
from topout.train.prepared.sample import Sample

_version_of = attrgetter("_version")


def _holders(tensor: Any) -> tuple[int, int]:
    """How many refer to its memory: tensors and arrays, the one that is asked among them, and Python's own storages.

    None of them for what other processes have too.
    """
    storage = tensor.untyped_storage()
    if storage.is_shared():
        return 0, 0
    return torch._C._storage_Use_Count(storage._cdata), sys.getrefcount(storage)


def _is_lent(tensor: Any) -> bool:
    """Whether the memory may be somebody else's, such as an array that it was made from or that was made of it."""
    return not tensor.untyped_storage().resizable()


class _Side:
    """One of the two copies: tensors of its own for parameters and state, and the kernels that update them."""

    def __init__(self, parameters: Tensors, groups: "_Groups", settings: Settings) -> None:
        self.parameters, self.groups = parameters, groups
        self.state = _state_of(groups, settings)
        self.data_ptrs = _data_ptrs_of([*parameters, *self.state])
        self.sample = Sample([*parameters, *self.state])

    def copy(self, other: "_Side") -> None:
        torch._foreach_copy_(self.parameters, other.parameters)
        if self.state:
            torch._foreach_copy_(self.state, other.state)


class PreparedGroup:
    """Held by the model's hook, so it does not hold the optimizer."""

    def __init__(self, optimizer: Any, parameters: Sequence[Any]) -> None:
        self._optimizer_reference = weakref.ref(optimizer)
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        self.places = [place for place, parameter in enumerate(parameters) if id(parameter) in held]
        """Of those among `parameters` that this optimizer has."""
        self.parameters = [parameters[place] for place in self.places]
        self.has_all = len(self.parameters) == len(parameters)
        self._sides: list[_Side] = []
        """What is in place, and what is ahead."""
        self._entries: list[Any] = []
        """The optimizer's own state of each parameter."""
        self._own: _Groups = []
        self._state: list[Any] = []
        """All tensors in it."""
        self._members: list[list[int]] = []
        """For each group of the optimizer, where its parameters are among ours."""
        self._held: list[list[Any]] = []
        """For each group of the optimizer, all its parameters."""
        self._versions: list[int] = []

    @property
    def _optimizer(self) -> Any:
        return self._optimizer_reference()

    @property
    def num_bytes(self) -> int:
        """What a second copy of parameters and state takes."""
        states = [
            value for state in map(self._optimizer.state.get, self.parameters) for value in (state or {}).values()
        ]
        return sum(t.numel() * t.element_size() for t in [*self.parameters, *states] if isinstance(t, torch.Tensor))

    def is_alone(self) -> bool:
        """Whether nobody else refers to the memory of parameters and state: views, NumPy arrays, other processes."""
        own = torch.empty(1, device="cpu")
        stand_for_ours = own.detach(), Sample([own])
        expected = _holders(stand_for_ours[0])
        return all(_holders(one) == expected for one in chain(self.parameters, self._state))

    def lay_out(self, settings: Settings) -> bool:
        """Makes the second copy where there is none for this state; False where there can be none, or no state yet."""
        if not all(map(are_plain, settings)):
            return False
        if self._sides and self._is_of_now(settings):
            return True
        self._sides = []
        # not asked of state: what a file brought would seem so, too
        if any(map(_is_lent, self.parameters)):
            return False
        self._members, self._held = self._found_members(), self._groups_of_now()
        self._entries = list(map(self._optimizer.state.get, self.parameters))
        self._own = self._groups(self.parameters, self._entries, settings)
        is_plain = all(group.is_plain for group in self._own if group is not None)
        if not (is_plain and all(map(is_dense, self.parameters))):
            return False
        try:
            self._state = _state_of(self._own, settings)
        except KeyError:
            # none yet, or not what these settings need
            return False
        self._sides = [self._side(unasked, settings), self._side(torch.empty_like, settings)]
        return True

    def prepare(self, gradients: Tensors, settings: Settings, divisor: int) -> bool:
        """After `lay_out`. Whether it could be done; gradients are divided by `divisor` then, and else by nobody."""
        here, ahead = self._sides
        ready = []
        for group, places, values in zip(ahead.groups, self._members, settings, strict=True):
            if group is not None:
                given, kept = [gradients[place] for place in places], group.kept(values)
                if not group.fits(given, kept):
                    return False
                ready.append((group, values, given, kept))
        scale = as_kernels_read_it(divisor) if divisor != 1 else None
        # before they are read: backward goes on meanwhile, and with it what the script has had called there
        self._versions = versions_of([*self.parameters, *self._state])
        with torch.no_grad():
            here.sample.take()
            ahead.copy(here)
            for group, values, given, kept in ready:
                group.update(values, given, kept, divisor=scale)
        return True

    def is_as_it_was(self, settings: Settings) -> bool:
        """Whether parameters and state are what `prepare` has seen."""
        is_counted = versions_of([*self.parameters, *self._state]) != self._versions
        return not is_counted and self._is_of_now(settings) and self._sides[0].sample.is_as_taken()

    def commit(self) -> None:
        self._sides.reverse()
        here, _ = self._sides
        for one, value in zip(chain(self.parameters, self._state), chain(here.parameters, here.state), strict=True):
            one.data = value
        torch.autograd.graph.increment_version([*self.parameters, *self._state])

    def _is_of_now(self, settings: Settings) -> bool:
        """Not after parameters or state have moved, state was loaded or replaced, or the optimizer's groups changed."""
        if not are_all_same(self._groups_of_now(), self._held):
            return False
        if not are_same(list(map(self._optimizer.state.get, self.parameters)), self._entries):
            return False
        try:
            has_state = are_same(_state_of(self._own, settings), self._state)
        except KeyError:
            return False
        return has_state and _data_ptrs_of([*self.parameters, *self._state]) == self._sides[0].data_ptrs

    def _side(self, make: Any, settings: Settings) -> _Side:
        """Of tensors that `make` makes from those in place."""
        parameters = list(map(make, self.parameters))
        names = {id(tensor): make(tensor) for tensor in self._state}
        entries = [
            {name: names.get(id(value), value) for name, value in (entry or {}).items()} for entry in self._entries
        ]
        return _Side(parameters, self._groups(parameters, entries, settings), settings)

    def _groups(self, parameters: Tensors, entries: Sequence[Any], settings: Settings) -> "_Groups":
        """The kernels for these, which have the entries as their state."""
        stands_for_it: Any = object.__new__(type(self._optimizer))
        stands_for_it.state = dict(zip(parameters, entries, strict=True))
        return [
            FusedGroup(stands_for_it, [parameters[place] for place in places], chosen) if places else None
            for places, chosen in zip(self._members, settings, strict=True)
        ]

    def _groups_of_now(self) -> list[list[Any]]:
        return [list(group["params"]) for group in self._optimizer.param_groups]

    def _found_members(self) -> list[list[int]]:
        place_of = {id(parameter): place for place, parameter in enumerate(self.parameters)}
        return [
            [place_of[id(parameter)] for parameter in group["params"] if id(parameter) in place_of]
            for group in self._optimizer.param_groups
        ]


_Groups = Sequence[FusedGroup | None]
"""For each group of the optimizer."""


def _data_ptrs_of(tensors: Tensors) -> list[int]:
    return list(map(torch.Tensor.data_ptr, tensors))


def versions_of(tensors: Tensors) -> list[int]:
    """How often each has been changed, as far as torch counts it."""
    return list(map(_version_of, tensors))


def _state_of(groups: _Groups, settings: Settings) -> list[Any]:
    """All tensors that the kernels change beside the parameters; KeyError where some are not there."""
    kept = [group.kept(values) for group, values in zip(groups, settings, strict=True) if group is not None]
    return [tensor for names in kept for tensors in names for tensor in tensors]
