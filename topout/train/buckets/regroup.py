"""Changes the groups in which a DDP module averages its gradients, between two steps, without wrapping it anew.

    regroup(ddp, (262_144, 4_194_304))   # limits in bytes, in the order of backward
    regroup(ddp, None)                   # as torch chooses

DDP decides once, when it is made. This drops its reducer and builds another one the way unpickling a module does; the
module, its parameters and whatever refers to them stay the same objects. The first step after it averages in the order
in which parameters were defined; then DDP rebuilds the buckets in the order of backward. Never between a forward and
its backward: the hooks of the old reducer are gone then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

Hook = tuple[Any, Callable[..., Any]]


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """`limits` None: DDP's default. `hook`: a communication hook and its state, None: plain averaging."""

    name: str
    limits: tuple[int, ...] | None = None
    hook: Hook | None = None


def can_regroup(ddp: Any) -> bool:
    """Whether this torch keeps its limits where we know them, and the module is one that DDP regroups itself."""
    known = ("_bucket_config", "_ddp_init_helper", "_build_params_for_reducer", "_build_debug_param_to_name_mapping")
    return (
        all(hasattr(ddp, name) for name in known)
        and not ddp.find_unused_parameters
        and not ddp.static_graph
        and not ddp._use_python_reducer
        and ddp.mixed_precision is None
    )


def regroup(ddp: Any, limits: Sequence[int] | None, hook: Hook | None = None) -> None:
    default = _default_config(ddp)
    if limits is not None:
        largest = max(limits)
        default = replace(
            default, bucket_bytes_cap=largest, per_bucket_bytes_caps=tuple(limits), first_bucket_bytes_cap=largest
        )
    ddp._bucket_config = default
    ddp.bucket_bytes_cap = default.bucket_bytes_cap
    ddp.bucket_bytes_cap_list = list(default.per_bucket_bytes_caps)
    # both, before the new ones: the logger holds the reducer, whose end takes its hooks off the parameters
    ddp.logger = None
    ddp.reducer = None
    parameters, expect_sparse_gradient = ddp._build_params_for_reducer()
    names = ddp._build_debug_param_to_name_mapping(parameters)
    ddp._ddp_init_helper(parameters, expect_sparse_gradient, names, ddp.static_graph)
    ddp._has_rebuilt_buckets = False
    if hook is not None:
        ddp.register_comm_hook(*hook)


def group_sizes(ddp: Any) -> tuple[int, ...]:
    """Bytes of each group as DDP rebuilt them; of the first step before it has."""
    seen = ddp._get_ddp_logging_data()
    text = str(seen.get("rebuilt_bucket_sizes") or seen.get("bucket_sizes") or "")
    return tuple(int(number) for number in text.split(",") if number.strip())


def _default_config(ddp: Any) -> Any:
    return type(ddp._bucket_config).create(None, None, False)
