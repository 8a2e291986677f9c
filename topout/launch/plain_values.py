"""The job's nouns as JSON can carry them, and back: what launchers tell each other of hosts, ranks and ends.

    to_plain(host)              # dicts, lists, numbers and texts
    from_plain(Host, content)   # equal to what was sent

    outline(world)                          # what launchers must know of the others' hosts and ranks
    from_outline(content, host, own_ranks)

Both ends run the same topout and have proved that they belong together before the first noun arrives, so nothing is
checked here beyond the names of fields. Not for input from outside: a config file is read by `schema.config_file`.
"""

from __future__ import annotations

from topout.schema.light_dataclass import names_of
from topout.schema.remembered import remembered
from topout.schema.world import Core, Host, Nic, Rank, World

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, TypeVar

    Noun = TypeVar("Noun")

_INSIDE: dict[str, dict[str, type]] = {
    "Member": {"host": Host},
    "Host": {"cores": Core, "nics": Nic},
    "Rank": {"nic": Nic},
    "RankEnd": {"signals_sent": frozenset},
}
"""Which fields hold nouns, or anything else that is more than a number, a text, a tuple or a dict of them. By name:
how a rank ended is loaded when one has."""


def to_plain(value: Any) -> Any:
    if isinstance(value, tuple | list | frozenset):
        return [to_plain(item) for item in value]
    if isinstance(value, Core):
        # without names: hundreds of them are most of what each of thousands of launchers says of itself
        return [getattr(value, name) for name in names_of(value)]
    if hasattr(value, "__names__"):
        return {name: to_plain(getattr(value, name)) for name in value.__names__}
    return value


def outline(world: World) -> dict[str, Any]:
    """All of thousands of launchers are told of all others, so only what a rank may read of them in its environment."""
    return {
        "hosts": [[host.name, host.address] for host in world.hosts],
        "ranks": [[rank.node_rank, rank.local_rank, rank.port] for rank in world.ranks],
        "master": [world.master_address, world.master_port],
    }


def from_outline(content: dict[str, Any], host: Host, own_ranks: Sequence[Rank]) -> World:
    """The world as the launcher of these ranks knows it; `host` is its own."""
    hosts = [Host(name=name, cores=(), memory_bytes=0, address=address) for name, address in content["hosts"]]
    ranks = [
        Rank(
            rank=number,
            local_rank=local_rank,
            node_rank=node_rank,
            host=hosts[node_rank].name,
            cores=(),
            num_threads=0,
            port=port,
        )
        for number, (node_rank, local_rank, port) in enumerate(content["ranks"])
    ]
    for rank in own_ranks:
        ranks[rank.rank], hosts[rank.node_rank] = rank, host
    address, port = content["master"]
    return World(hosts=tuple(hosts), ranks=tuple(ranks), master_address=address, master_port=port)


def from_plain(noun: type[Noun], content: dict[str, Any]) -> Noun:
    """Every list becomes a tuple, as all of these have them."""
    inside = _INSIDE.get(noun.__name__, {})
    return noun(**{name: _read(inside.get(name), content[name]) for name in names_of(noun) if name in content})


def _read(noun: type | None, value: Any) -> Any:
    if noun is Core:
        return tuple([_core(*row) for row in value])
    if isinstance(value, list):
        return frozenset(value) if noun is frozenset else tuple([_read(noun, item) for item in value])
    return from_plain(noun, value) if noun is not None and isinstance(value, dict) else value


@remembered
def _core(*values: int) -> Core:
    """Hosts of a job are alike, and tasks of a host see the same cores: each is made once."""
    return Core(**dict(zip(names_of(Core), values, strict=True)))
