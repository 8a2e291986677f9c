"""The job's nouns as JSON can carry them, and back: what launchers tell each other of hosts, ranks and ends.

    to_plain(host)              # dicts, lists, numbers and texts
    from_plain(Host, content)   # equal to what was sent

Both ends run the same topout and have proved that they belong together before the first noun arrives, so nothing is
checked here beyond the names of fields. Not for input from outside: a config file is read by `schema.config_file`.
"""

from __future__ import annotations

from topout.launch.first_failure import RankEnd
from topout.launch.member import Member
from topout.schema.light_dataclass import names_of
from topout.schema.world import Core, Host, Nic, Rank, World

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    Noun = TypeVar("Noun")

_INSIDE: dict[type, dict[str, type]] = {
    Member: {"host": Host},
    World: {"hosts": Host, "ranks": Rank},
    Host: {"cores": Core, "nics": Nic},
    Rank: {"nic": Nic},
    RankEnd: {"signals_sent": frozenset},
}
"""Which fields hold nouns, or anything else that is more than a number, a text, a tuple or a dict of them."""


def to_plain(value: Any) -> Any:
    if isinstance(value, tuple | list | frozenset):
        return [to_plain(item) for item in value]
    if hasattr(value, "__names__"):
        return {name: to_plain(getattr(value, name)) for name in value.__names__}
    return value


def from_plain(noun: type[Noun], content: dict[str, Any]) -> Noun:
    """Every list becomes a tuple, as all of these have them."""
    inside = _INSIDE.get(noun, {})
    return noun(**{name: _read(inside.get(name), content[name]) for name in names_of(noun) if name in content})


def _read(noun: type | None, value: Any) -> Any:
    if isinstance(value, list):
        return frozenset(value) if noun is frozenset else tuple([_read(noun, item) for item in value])
    return from_plain(noun, value) if noun is not None and isinstance(value, dict) else value
