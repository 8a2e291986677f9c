"""How a DDP module averages from the next step on, as JSON: with it a resumed training adds in the same order.

    value = kept(ddp)                            # None where it is not known, or not ours to say
    if may_put_back(ddp, value): put_back(ddp, value)

`groups` are those of the next step, `choice` is Autotune's where it has chosen, and `hands_over_after` what each rank
has of its own. Not for modules that the script has given a communication hook, which another reducer would not have,
nor while Autotune tries: what it will choose depends on measured times.
"""

from typing import Any

from topout.train.buckets.assignment import fits, in_force
from topout.train.buckets.autotune import tuning_of
from topout.train.buckets.regroup import Hook, are_values, averaged, can_regroup, renew

Json = Any


def kept(ddp: Any) -> Json:
    if not _is_within_reach(ddp):
        return None
    tuning = tuning_of(ddp)
    is_ours = _own_hooks(ddp) is not None if tuning is None else tuning.is_at_rest
    if not is_ours:
        return None
    groups = in_force(ddp)
    if groups is None or not fits(groups, ddp):
        return None
    beside = {"choice": None, "hands_over_after": []} if tuning is None else tuning.kept()
    return {"groups": groups, **beside}


def may_put_back(ddp: Any, value: Json) -> bool:
    """Whether this rank may: all of them have to."""
    if not (_is_within_reach(ddp) and _is_kept(value) and fits(value["groups"], ddp)):
        return False
    tuning = tuning_of(ddp)
    if tuning is None:
        return value["choice"] is None and _own_hooks(ddp) is not None
    num_parameters = sum(map(len, value["groups"]))
    has_places = all(0 <= place < num_parameters for place in value["hands_over_after"])
    return has_places and tuning.may_take(value["choice"])


def put_back(ddp: Any, value: Json) -> None:
    """Between two steps, on all ranks."""
    tuning = tuning_of(ddp)
    if (tuning is None or tuning.is_settled or value["choice"] is None) and in_force(ddp) == value["groups"]:
        return
    if tuning is None:
        renew(ddp, _own_hooks(ddp) or [], value["groups"])
    else:
        tuning.take(value["choice"], value["hands_over_after"], value["groups"])


def _is_within_reach(ddp: Any) -> bool:
    # one that leaves all to hooks of its own has neither reducer nor logger
    return getattr(ddp, "logger", None) is not None and can_regroup(ddp)


def _own_hooks(ddp: Any) -> list[Hook] | None:
    """Those of ours, which go to another reducer; None where that would lose something of the script's."""
    seen = ddp._get_ddp_logging_data()
    parameters = averaged(ddp)
    num_bytes = sum(parameter.nbytes for parameter in parameters)
    # not where layers were frozen or unfrozen since
    would_average_the_same = (len(parameters), num_bytes) == (
        seen.get("num_parameter_tensors"), seen.get("total_parameter_size_bytes")
    )  # fmt: skip
    hooks = [(state, hook) for hook, state in ddp._comm_hooks]
    # torch's own in C++ are not among them
    are_ours = all(_is_ours(hook) for _, hook in hooks) and bool(hooks) == bool(seen.get("comm_hook"))
    return hooks if would_average_the_same and are_ours else None


def _is_ours(hook: Any) -> bool:
    room = __name__.partition(".")[0]
    return type(getattr(hook, "__self__", None)).__module__.partition(".")[0] == room


def _is_kept(value: Json) -> bool:
    if not isinstance(value, dict) or not {"groups", "choice", "hands_over_after"} <= set(value):
        return False
    places = value["hands_over_after"]
    has_places = isinstance(places, list) and all(type(place) is int for place in places)
    return has_places and (value["choice"] is None or are_values(value["choice"]))
