"""A machine as a scaling model sees it: nodes, the links between them, and where data lies.

Read from TOML (`systems/`, or your own file); every number may be `{value, low, high}`, an 80 % range. Figures are
those that jobs reach, not those of data sheets, where the two are known to differ.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Link:
    latency_s: float
    bytes_per_s: float
    """Of one link, one way."""
    links: float = 1.0
    """How many of them a node has; a fraction where they cannot all be filled."""
    message_cpu_s: float = 0.0
    """What a message costs a rank's processors; zero: a device carries it."""
    byte_cpu_s: float = 0.0
    """The same for a byte sent."""


@dataclass(frozen=True, kw_only=True)
class SharedStorage:
    """Zero: not known, or no limit."""

    bytes_per_s: float = 0.0
    """Of all servers together."""
    opens_per_s: float = 0.0
    """Metadata operations of all servers together."""
    client_bytes_per_s: float = 0.0
    """What one node reaches when the others are idle."""
    sharpness: float = 4.0


@dataclass(frozen=True, kw_only=True)
class LocalStorage:
    bytes_per_s: float = 0.0
    bytes: float = 0.0


@dataclass(frozen=True, kw_only=True)
class System:
    title: str
    nodes: int
    """How many there are; no prediction goes further."""
    ranks_per_node: int
    cores: int = 0
    """Of a node, shared by its ranks for computing and for carrying messages; zero: not known, no limit."""
    device: str = ""
    """A name of `topout hardware`."""
    source: str = ""
    inside: Link
    between: Link
    shared_storage: SharedStorage = field(default_factory=SharedStorage)
    local_storage: LocalStorage = field(default_factory=LocalStorage)
