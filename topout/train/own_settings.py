"""What a script set on an optimizer that `fuse` has changed since, for whatever leaves the process or becomes another.

Copies, pickles and state dicts must not say `fused`: where they arrive, nothing makes gradients and state fit those
kernels (`fused_fit`). A shallow copy (`copy.copy`) has groups of its own for the same reason.
"""

import weakref
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Any

import torch

_NAMES = ("fused", "foreach")

_Settings = Mapping[str, Any]

_own: "weakref.WeakKeyDictionary[Any, tuple[_Settings, Sequence[_Settings]]]" = weakref.WeakKeyDictionary()
"""Of the defaults, and of each group."""


def keep_own(optimizer: Any) -> None:
    """Before they are changed; the first time counts."""
    if optimizer in _own:
        return
    _own[optimizer] = _wishes(optimizer.defaults), [*map(_wishes, optimizer.param_groups)]
    # an attribute of this one object, which deepcopy and pickle ask for; weakly, or it would keep itself
    optimizer.__reduce_ex__ = partial(_reduced, weakref.ref(optimizer))
    optimizer.register_state_dict_post_hook(_in_state_dict, prepend=True)


def keep_loaded(optimizer: Any) -> None:
    """What a state dict has brought is the script's own, too."""
    of_defaults, _ = _own[optimizer]
    _own[optimizer] = of_defaults, [*map(_wishes, optimizer.param_groups)]


def own_groups(optimizer: Any) -> list[dict[str, Any]]:
    """Its groups as the script has them, whether it was fused or not."""
    groups = optimizer.param_groups
    return _as_own(optimizer, groups) if optimizer in _own else groups


def _wishes(settings: _Settings) -> _Settings:
    return {name: settings.get(name) for name in _NAMES}


def _as_own(optimizer: Any, groups: Sequence[_Settings]) -> list[dict[str, Any]]:
    of_defaults, of_groups = _own[optimizer]
    # later groups took the defaults
    return [_put_back(group, own) for group, own in zip(groups, chain(of_groups, repeat(of_defaults)), strict=False)]


def _put_back(settings: _Settings, own: _Settings) -> dict[str, Any]:
    """Unless the script has switched them off since."""
    return {**settings, **own} if settings.get("fused") else dict(settings)


def _in_state_dict(optimizer: Any, state_dict: dict[str, Any]) -> None:
    state_dict["param_groups"] = _as_own(optimizer, state_dict["param_groups"])


def _reduced(reference: Any, protocol: int) -> tuple[Any, ...]:
    optimizer = reference()
    kind: Any = type(optimizer)
    how, args, held, *more = kind.__reduce_ex__(optimizer, protocol)
    groups = _as_own(optimizer, held["param_groups"])
    held = {
        **held,
        "defaults": _put_back(held["defaults"], _own[optimizer][0]),
        "param_groups": groups,
        "state": _counted_on_the_host(held["state"], groups),
    }
    return how, args, held, *more


def _counted_on_the_host(state: Any, groups: Sequence[_Settings]) -> Any:
    """As unfused optimizers count their steps."""
    unfused = [p for group in groups if not (group["fused"] or group.get("capturable")) for p in group["params"]]
    counts = {p: state[p]["step"].cpu() for p in unfused if torch.is_tensor(state.get(p, {}).get("step"))}
    if all(count is state[p]["step"] for p, count in counts.items()):
        return state
    counted = {p: {**kept, "step": counts[p]} if p in counts else kept for p, kept in state.items()}
    return defaultdict(dict, counted)
