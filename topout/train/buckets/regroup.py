"""Changes the groups in which a DDP module averages its gradients, between two steps, without wrapping it anew.

    regroup(ddp, (262_144, 4_194_304))   # limits in bytes, in the order of backward
    regroup(ddp, None)                   # as torch chooses
    renew(ddp, [], assignment)           # within the limits that it has, in these very groups

DDP decides once, when it is made. This drops its reducer and builds another one the way unpickling a module does; the
module, its parameters and whatever refers to them stay the same objects. The first step after it averages in the order
in which parameters were defined, unless an assignment is given; then DDP rebuilds the buckets in the order of backward.
Never between a forward and its backward: the hooks of the old reducer are gone then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from topout.train.buckets.assignment import Assignment, given, note
from topout.train.buckets.grouping import DDP_BYTES

Hook = tuple[Any, Callable[..., Any]]


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """`limits` None: DDP's default. `hook`: a communication hook and its state, None: plain averaging.

    `prepares`: the next parameters are computed while later groups travel (`prepared`).
    `hands_over`: while backward computes, the core is handed over now and then to those who send (`handover.py`).
    """

    name: str
    limits: tuple[int, ...] | None = None
    hook: Hook | None = None
    hands_over: bool = False
    prepares: bool = False


def as_values(grouping: Grouping) -> dict[str, Any]:
    """As JSON; of a hook its name, since whoever reads it makes its own."""
    return {
        "name": grouping.name,
        "limits": None if grouping.limits is None else list(grouping.limits),
        "hook": grouping.name if grouping.hook else None,
        "hands_over": grouping.hands_over,
        "prepares": grouping.prepares,
    }


def are_values(found: Any) -> bool:
    """Whether it is what `as_values` writes."""
    if not isinstance(found, dict):
        return False
    limits = found.get("limits", ())
    return (
        isinstance(found.get("name"), str)
        and (
            limits is None
            or (isinstance(limits, list) and bool(limits) and all(type(size) is int and size > 0 for size in limits))
        )
        and isinstance(found.get("hook", ()), str | None)
        and isinstance(found.get("hands_over"), bool)
        and isinstance(found.get("prepares"), bool)
    )


def can_regroup(ddp: Any) -> bool:
    """Whether this torch keeps its limits where we know them (from 2.11 on), and DDP regroups this module itself."""
    known = (
        "bucket_bytes_cap_list",
        "bucket_bytes_cap_default",
        "_ddp_init_helper",
        "_build_params_for_reducer",
        "_build_debug_param_to_name_mapping",
    )
    return (
        all(hasattr(ddp, name) for name in known)
        and not ddp.find_unused_parameters
        and not ddp.static_graph
        and not ddp._use_python_reducer
        and ddp.mixed_precision is None
    )


def averaged(ddp: Any) -> list[Any]:
    """The parameters that a reducer made now would average: those that require gradients at this moment."""
    parameters, _ = ddp._build_params_for_reducer()
    return list(parameters)


def regroup(
    ddp: Any, limits: Sequence[int] | None, hook: Hook | None = None, assignment: Assignment | None = None
) -> None:
    caps = tuple(limits or ())
    ddp.bucket_bytes_cap_list = list(caps)
    ddp.bucket_bytes_cap = max(caps, default=DDP_BYTES)
    ddp.bucket_bytes_cap_default = not caps
    if hasattr(ddp, "_bucket_config"):
        # newer torch reads it here, and only shows it there
        largest = ddp.bucket_bytes_cap
        config = type(ddp._bucket_config).create(None, None, False)
        if caps:
            config = replace(
                config, bucket_bytes_cap=largest, per_bucket_bytes_caps=caps, first_bucket_bytes_cap=largest
            )
        ddp._bucket_config = config
    renew(ddp, [] if hook is None else [hook], assignment)


def renew(ddp: Any, hooks: Sequence[Hook], assignment: Assignment | None = None) -> None:
    """`assignment` is one that fits (`assignment.py`): the groups of the first step."""
    # both, before the new ones: the logger holds the reducer, whose end takes its hooks off the parameters
    ddp.logger = None
    ddp.reducer = None
    parameters, expect_sparse_gradient = ddp._build_params_for_reducer()
    names = ddp._build_debug_param_to_name_mapping(parameters)
    with given(assignment, parameters):
        ddp._ddp_init_helper(parameters, expect_sparse_gradient, names, ddp.static_graph)
    note(ddp, assignment)
    ddp._has_rebuilt_buckets = False
    ddp._comm_hooks = []
    for hook in hooks:
        # DDP's own: the instance's may stand for the script (`guest.py`)
        type(ddp).register_comm_hook(ddp, *hook)


def group_sizes(ddp: Any) -> tuple[int, ...]:
    """Bytes of each group as DDP rebuilt them; of the first step before it has."""
    seen = ddp._get_ddp_logging_data()
    text = str(seen.get("rebuilt_bucket_sizes") or seen.get("bucket_sizes") or "")
    return tuple(int(number) for number in text.split(",") if number.strip())
