"""Who takes part: hosts, ranks, the cores and devices each rank owns."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Core:
    """One logical processor and where it sits."""

    index: int
    physical: int
    socket: int
    numa: int


@dataclass(frozen=True, kw_only=True)
class Host:
    """One machine as the launcher sees it; `cores` are those this process may use."""

    name: str
    cores: tuple[Core, ...]
    memory_bytes: int
    gpus: tuple[str, ...] = ()
    """Names of the GPUs, in their index order."""

    @property
    def numa_domains(self) -> tuple[int, ...]:
        return tuple(sorted({core.numa for core in self.cores}))


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One process of the job."""

    rank: int
    local_rank: int
    node_rank: int
    host: str
    cores: tuple[int, ...]
    """Logical processors it is bound to; empty when it is not bound."""
    num_threads: int
    gpu: int | None = None


@dataclass(frozen=True, kw_only=True)
class World:
    """All ranks, and the address at which they meet."""

    hosts: tuple[Host, ...]
    ranks: tuple[Rank, ...]
    master_address: str
    master_port: int

    @property
    def size(self) -> int:
        return len(self.ranks)
