"""An optimizer's own arithmetic on some of its parameters, with gradients that are given and not the parameters' own.

For optimizers that treat every parameter by itself: doing them in parts gives the bits of doing them at once.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from topout.schema.errors import TopoutError
from topout.train.buckets.whole_division import is_exact
from topout.train.fused import has_sparse_gradients
from topout.train.fused_fit import lay_out_state, lie_alike, like, need_other_kernels
from topout.train.fused_group import FusedGroup, Tensors, are_plain, are_same

KINDS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)

Settings = Sequence[Mapping[str, Any]]
"""Of each group of parameters: learning rate and the like."""

_Ready = tuple[FusedGroup, Mapping[str, Any], Tensors, Sequence[Tensors]]
"""A group, its settings, its gradients, and what each name of its state stands for."""

_PLAIN = {("cpu", torch.float32), ("cpu", torch.float64)}

_MOST_PARTS = 256
"""Groups are remade while their sizes are tried; parts of former ones are forgotten now and then."""


class PartialStep:
    """State is the optimizer's: what a part has left behind the next whole step goes on with."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        # of the same class; it gets the parameters of one part at a time, and the state as it is then
        self._partial = copy.copy(optimizer)
        self._step = getattr(type(optimizer).step, "__wrapped__", type(optimizer).step)
        self._parts: dict[tuple[int, ...], _Part] = {}

    def settings(self) -> Settings:
        """As they are now; schedules change them between steps."""
        return settings_of(self._optimizer)

    def apply(
        self,
        parameters: Sequence[Any],
        gradients: Sequence[Any],
        settings: Settings,
        *,
        flat: Any = None,
        divisor: int = 1,
    ) -> None:
        """Not by two threads at a time. Parameters of other optimizers, or whose gradient is None, are left alone.

        Gradients, which lie in `flat`, are divided before; by the optimizer itself where it has the pass for it.
        """
        part = self._part(parameters)
        ready = part.ready_for_kernels(self._optimizer, gradients, settings)
        if ready is None:
            self._apply_by_torch(part, gradients, settings, flat, divisor)
        else:
            scale = as_kernels_read_it(divisor) if divisor != 1 else None
            with torch.no_grad():
                for group, values, given, kept in ready:
                    group.update(values, given, kept, divisor=scale)
        # fused kernels do not: whoever computed with a parameter too early shall hear of it
        torch.autograd.graph.increment_version(part.held)

    def _apply_by_torch(
        self, part: "_Part", gradients: Sequence[Any], settings: Settings, flat: Any, divisor: int
    ) -> None:
        """By the optimizer's `step`, which makes the state, too."""
        settings = part.fitting(self._optimizer, gradients, settings)
        is_fused = all(values.get("fused") for values in settings)
        is_whole = all(one is not None for one in gradients)
        lies_alike = is_whole and all(map(lie_alike, gradients, part.stand_ins))
        # as gradients of a scaled loss are, in the pass over memory that is made anyway
        divides_itself = divisor != 1 and is_fused and part.is_plain and lies_alike
        self._partial.grad_scale = as_kernels_read_it(divisor) if divides_itself else None
        if divisor != 1 and not divides_itself:
            flat.div_(divisor)
        for stand_in, gradient in zip(part.stand_ins, gradients, strict=True):
            is_other = gradient is not None and not lie_alike(gradient, stand_in)
            stand_in.grad = like(stand_in, gradient) if is_other else gradient
        self._partial.param_groups = [
            {**values, "params": stand_ins} for values, stand_ins in zip(settings, part.groups, strict=True)
        ]
        self._partial.state = part.state
        with torch.no_grad():
            self._step(self._partial)
        for stand_in in part.stand_ins:
            # else it would keep the memory of groups that are no more
            stand_in.grad = None

    def _part(self, parameters: Sequence[Any]) -> "_Part":
        names = tuple(map(id, parameters))
        known = self._parts.get(names)
        if known is None or known.is_stale(self._optimizer):
            if len(self._parts) >= _MOST_PARTS:
                self._parts.clear()
            known = self._parts[names] = _Part(self._optimizer, parameters)
        return known


class _Part:
    """Some parameters, each with a stand-in: of the same memory and version, with a gradient of its own.

    The parameter's own gradient may be taken away meanwhile. Kept from step to step, which takes half the time of
    making them anew.
    """

    def __init__(self, optimizer: Any, parameters: Sequence[Any]) -> None:
        self._parameters = list(parameters)
        self._data_ptrs = [parameter.data_ptr() for parameter in parameters]
        self.stand_ins = [parameter.detach() for parameter in parameters]
        stand_in_of = {id(parameter): stand_in for parameter, stand_in in zip(parameters, self.stand_ins, strict=True)}
        self.groups = [
            [stand_in_of[id(parameter)] for parameter in group["params"] if id(parameter) in stand_in_of]
            for group in optimizer.param_groups
        ]
        self.held = [stand_in for group in self.groups for stand_in in group]
        kinds = {(parameter.device.type, parameter.dtype) for parameter in parameters}
        # on GPUs SGD would round otherwise, and so would numbers of half the size
        self.is_plain = len(self.held) == len(self.stand_ins) and kinds <= _PLAIN
        self._members = [list(group["params"]) for group in optimizer.param_groups]
        place_of = {id(parameter): place for place, parameter in enumerate(parameters)}
        self._places = [
            [place_of[id(parameter)] for parameter in group["params"] if id(parameter) in place_of]
            for group in optimizer.param_groups
        ]
        self._states: list[Any] = []
        self._fused: list[FusedGroup | None] = []
        self.state = _StateOfParameters(optimizer, dict(zip(self.stand_ins, parameters, strict=True)))

    def is_stale(self, optimizer: Any) -> bool:
        """Whether parameters have moved (`parameter.data = …`), or the optimizer has others, or in other groups."""
        data_ptrs = [parameter.data_ptr() for parameter in self._parameters]
        groups = optimizer.param_groups
        if data_ptrs != self._data_ptrs or len(groups) != len(self._members):
            return True
        return not all(are_same(group["params"], held) for group, held in zip(groups, self._members, strict=True))

    def fitting(self, optimizer: Any, gradients: Sequence[Any], settings: Settings) -> Settings:
        """Without fused kernels where these would not do; else state lies as they need it."""
        found = []
        for places, values in zip(self._places, settings, strict=True):
            held = [(self._parameters[place], gradients[place]) for place in places if gradients[place] is not None]
            parameters, given = [one for one, _ in held], [one for _, one in held]
            is_fused = bool(values.get("fused")) and not need_other_kernels(optimizer, values, parameters, given)
            if is_fused:
                lay_out_state(optimizer, parameters)
            found.append({**values, "fused": is_fused} if values.get("fused") else values)
        return found

    def ready_for_kernels(self, optimizer: Any, gradients: Sequence[Any], settings: Settings) -> "list[_Ready] | None":
        """What torch's fused kernels are given, where they can be called without torch's walk over the parameters."""
        if not self.is_plain or not all(map(are_plain, settings)):
            return None
        states = list(map(optimizer.state.get, self._parameters))
        if not self._fused or not are_same(states, self._states):
            # the first step has made them, or a checkpoint was loaded
            self._states = states
            members = [[self._parameters[place] for place in places] for places in self._places]
            self._fused = [
                FusedGroup(optimizer, held, values) if held else None
                for held, values in zip(members, settings, strict=True)
            ]
        found: list[_Ready] = []
        for group, places, values in zip(self._fused, self._places, settings, strict=True):
            if group is None:
                continue
            try:
                given, kept = [gradients[place] for place in places], group.kept(values)
            except KeyError:
                # settings that need more state than there is
                return None
            if not group.is_plain or not group.fits(given, kept):
                return None
            found.append((group, values, given, kept))
        return found


class _StateOfParameters(dict[Any, Any]):
    """The optimizer's own state as it is now, asked for by stand-ins; loading a checkpoint replaces it."""

    def __init__(self, optimizer: Any, parameter_of: Mapping[Any, Any]) -> None:
        super().__init__()
        self._optimizer, self._parameter_of = optimizer, parameter_of

    def __missing__(self, stand_in: Any) -> Any:
        return self._optimizer.state[self._parameter_of[stand_in]]


def settings_of(optimizer: Any) -> Settings:
    """Of each group, as they are now; without what a script has put there for itself."""
    known = [name for name in optimizer.defaults if name != "params"]
    return [{name: _kept(group[name]) for name in known if name in group} for group in optimizer.param_groups]


def late_divisor(flat: Any, world_size: int) -> int:
    """What a sum over ranks is divided by when it has come; 1: gradients must be divided before, as DDP does.

    Among 2, 4, 8, … ranks it gives the same bits, and while other gradients travel; but float16 may overflow.
    """
    return world_size if is_exact(world_size) and flat.dtype is not torch.float16 else 1


def check_kind(model: Any, optimizer: Any, compress: str | None, option: str) -> None:
    """Raises where `option` of `wrap` cannot be had: it updates parameters in parts."""
    why = None
    if optimizer is None:
        why = "It updates parameters as their averaged gradients come, and no optimizer was given."
    elif compress is not None:
        why = f"compress={compress!r} averages in its own way."
    elif has_sparse_gradients(model):
        why = "The model has sparse gradients."
    elif type(optimizer) not in KINDS:
        why = f"{type(optimizer).__name__} may not treat every parameter by itself, as torch's SGD, Adam and AdamW do."
    if why is not None:
        raise TopoutError(f"{option}=True cannot be had here.", why=why, do="leave it out")


def check_no_closure(args: Sequence[Any], kwargs: Mapping[str, Any], option: str) -> None:
    """`args` as a hook of `step` gets them; the first is the optimizer itself."""
    if any(given is not None for given in (*args[1:], kwargs.get("closure"))):
        raise TopoutError(
            f"optimizer.step(closure) and {option} do not go together.",
            why="A closure computes gradients inside the step, and they have been applied by then.",
            do=f"leave out {option}=True",
        )


def changed(what: str, option: str) -> TopoutError:
    return TopoutError(
        f"With {option} {what} between backward and optimizer.step().",
        why="Each group was updated when its gradients had come; clipping, a loss scaler or the like came too late.",
        do=f"leave out {option}=True",
    )


def twice(option: str) -> TopoutError:
    return TopoutError(
        f"With {option} a second backward came before optimizer.step().",
        why="Each averaging backward updates the parameters, so there is one for a step.",
        do=f"accumulate under model.no_sync(), or leave out {option}=True",
    )


def as_kernels_read_it(divisor: int) -> Any:
    """As the kernels read it, whatever torch's defaults are."""
    return torch.tensor(float(divisor), dtype=torch.float32, device="cpu")


def _kept(value: Any) -> Any:
    """A learning rate may be a tensor, which schedules change in place."""
    return value.clone() if isinstance(value, torch.Tensor) else value
