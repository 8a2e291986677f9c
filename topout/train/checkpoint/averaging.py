"""How gradients of the state's DDP modules are averaged, kept beside them: a resumed run adds in the same order.

For the same number of ranks alone, among which an order means the same; others group and tune as at any start. Nor for
what `buckets.kept` leaves alone, such as modules with a communication hook of the script.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from topout.train.buckets.kept import kept, may_put_back, put_back
from topout.train.checkpoint.agreement import Agreement
from topout.train.checkpoint.entries import Entry, ModuleEntry

AVERAGING = "@averaging"
"""The entry in a rank's file; no entry of a user begins like this."""


def captured(entries: Sequence[Entry]) -> dict[str, Any]:
    """By name of the module."""
    found = {name: kept(replica) for name, replica in _replicas(entries).items()}
    return {name: value for name, value in found.items() if value is not None}


def restore(entries: Sequence[Entry], tree: Any, agreement: Agreement) -> None:
    """All ranks together, when parameters are in place. `tree` is None in older checkpoints."""
    values = tree if isinstance(tree, dict) else {}
    replicas = _replicas(entries)
    wanted = {
        name: values[name] for name in sorted(replicas.keys() & values) if may_put_back(replicas[name], values[name])
    }
    told = agreement.shared({name: _common(value) for name, value in wanted.items()})
    for name, value in wanted.items():
        if all(other.get(name) == told[0].get(name) for other in told):
            put_back(replicas[name], value)


def _replicas(entries: Sequence[Entry]) -> dict[str, Any]:
    found = {entry.name: entry.replica for entry in entries if isinstance(entry, ModuleEntry)}
    return {name: replica for name, replica in found.items() if replica is not None}


def _common(value: Any) -> str:
    """What must be the same on all ranks, in few bytes."""
    return hashlib.sha256(json.dumps([value["groups"], value["choice"]]).encode()).hexdigest()
