"""How the job was set up, as far as the rules need it: from run.json and from what the ranks told of themselves."""

from collections.abc import Mapping, Sequence
from typing import Any

from topout.analyze.memory import hosts_of
from topout.analyze.unheard import started_ranks
from topout.schema.measures import Environment
from topout.trace.table import RankTable

_AS_TOLD = (
    "device_name", "uses_autocast", "uses_tf32", "uses_channels_last", "has_convolutions", "supports_bf16",
    "supports_tf32", "uses_data_parallel", "torch_version", "processor", "backward_uses_onednn",
    "num_small_products",
)  # fmt: skip


def describe_environment(tables: Sequence[RankTable], run: Mapping[str, Any]) -> Environment:
    """A rank that was started but recorded nothing still counts."""
    started = started_ranks(run)
    hosts = hosts_of(run)
    cores = [rank["cores"] for rank in started if isinstance(rank.get("cores"), list)]
    asked = {rank["rank"]: rank.get("num_threads") for rank in started if isinstance(rank.get("rank"), int)}
    threads = [_threads(table, asked) for table in tables]
    return Environment(
        num_ranks=max(len(started), len(tables), 1),
        num_hosts=max(len(hosts), len({table.host for table in tables if table.host}), 1),
        num_cores=next((host["num_cores"] for host in hosts if _is_count(host.get("num_cores"))), None),
        cores_per_rank=min(map(len, cores)) if cores and all(cores) else None,
        threads_per_rank=max((count for count in threads if count is not None), default=None),
        is_bound=all(cores) if cores else None,
        **{name: _first(tables, name) for name in _AS_TOLD},
    )


def _threads(table: RankTable, asked: Mapping[int, Any]) -> int | None:
    """What torch used; else what the launcher asked for, by rank."""
    told = table.facts.get("num_threads")
    found = told if isinstance(told, int) else asked.get(table.rank)
    return found if isinstance(found, int) else None


def _is_count(value: Any) -> bool:
    """In a run.json that a hand has changed it may be anything."""
    return isinstance(value, int) and 0 < value < 1 << 31


def _first(tables: Sequence[RankTable], fact: str) -> Any:
    return next((table.facts[fact] for table in tables if table.facts.get(fact) is not None), None)
