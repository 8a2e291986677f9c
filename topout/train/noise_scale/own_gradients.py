"""Where this rank's own gradients show before they are averaged, and the sum of their squares.

A hook on a parameter gets what one backward adds to its gradient: DDP's buckets and codecs come later, and so does
what earlier micro-batches left in `.grad`. Under FSDP2 the parameter that autograd knows is the gathered one, which is
found in FSDP's own records; those are private to torch. Hooks are there in sampled steps only.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from topout.train.noise_scale.norms import square


class OwnGradients:
    """Attached from making to `detach`; `squares` and `num_backwards` tell what came by.

    `num_peers`: ranks that compute the same gradient, each of it whole or, where a layer is split, a part.
    """

    def __init__(self, parameters: list[Any], num_peers: int, at_first: Callable[[], None]) -> None:
        self._num_peers = num_peers
        self.squares: list[Tensor] = []
        self._counts: Counter[int] = Counter()
        self._at_first = at_first
        """Called with every gradient; it arranges for what must happen when this backward has ended."""
        self._handles = [parameter.register_hook(self._see(number)) for number, parameter in enumerate(parameters)]

    @property
    def num_backwards(self) -> int:
        """How many micro-batches came by. A parameter that one of them left out does not hide it."""
        return max(self._counts.values(), default=0)

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _see(self, number: int) -> Callable[[Any], None]:
        def see(gradient: Any) -> None:
            self._counts[number] += 1
            self.squares.append(square(gradient, self._num_peers))
            self._at_first()

        return see


def visible_parameters(model: Any) -> list[Any] | None:
    """Those whose hooks get this rank's own gradients; None before FSDP2 has gathered its parameters once."""
    found, of_fsdp = [], set()
    for entry in fsdp_parameters(model):
        of_fsdp.add(id(entry.sharded_param))
        if not entry.sharded_param.requires_grad:
            continue
        gathered = getattr(entry, "_unsharded_param", None)
        if gathered is None:
            return None
        found.append(gathered)
    others = [parameter for parameter in model.parameters() if parameter.requires_grad and id(parameter) not in of_fsdp]
    gathered_now = {id(parameter) for parameter in found}
    return found + [parameter for parameter in others if id(parameter) not in gathered_now]


def fsdp_parameters(model: Any) -> Iterator[Any]:
    for group in fsdp_groups(model):
        yield from group.fsdp_params


def fsdp_groups(model: Any) -> Iterator[Any]:
    """FSDP2's records of its groups of parameters; torch 2.11 has one for each module, 2.13 a list."""
    seen = set()
    for module in model.modules():
        state = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:
            groups = [getattr(state, "_fsdp_param_group", None)]
        for group in groups:
            if group is not None and id(group) not in seen:
                seen.add(id(group))
                yield group


def num_split_over(model: Any) -> int:
    """How many ranks share a parameter when it is computed with, FSDP2's being gathered then: 1 but for DTensors."""
    specs, of_fsdp = [], set()
    for entry in fsdp_parameters(model):
        of_fsdp.add(id(entry.sharded_param))
        # as it was before FSDP2; private, and another name in torch 2.11
        specs.append(getattr(entry, "_unsharded_dtensor_spec", None) or getattr(entry, "_tp_spec", None))
    meshes = [spec.mesh for spec in specs if spec is not None]
    others = [parameter for parameter in model.parameters() if id(parameter) not in of_fsdp]
    meshes += [parameter.device_mesh for parameter in others if hasattr(parameter, "placements")]
    return max((int(mesh.size()) for mesh in meshes), default=1)


def is_fsdp(model: Any) -> bool:
    return any(hasattr(module, "_get_fsdp_state") for module in model.modules())


def divisor(model: Any, num_ranks: int) -> float:
    """By what the sum over ranks is divided: their number, unless FSDP2 was told otherwise."""
    told = {getattr(group, "gradient_divide_factor", None) or num_ranks for group in fsdp_groups(model)}
    return float(told.pop()) if len(told) == 1 else float(num_ranks)


def averages_now(model: Any) -> bool:
    """Whether gradients are averages when this backward ends: not those that DDP leaves alone under `no_sync`."""
    return not isinstance(model, DistributedDataParallel) or bool(model.require_backward_grad_sync)
