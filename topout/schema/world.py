"""Who takes part: hosts, ranks, the cores and devices each rank owns."""

from __future__ import annotations

from topout.schema.light_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class Core:
    """One logical processor and where it sits."""

    index: int
    physical: int
    socket: int
    numa: int


@dataclass(frozen=True, kw_only=True)
class Nic:
    """One network interface, or one InfiniBand port."""

    name: str
    """As the kernel calls the interface (`eth0`, `ib0`)."""
    speed_bits_per_s: float | None = None
    numa: int | None = None
    addresses: tuple[str, ...] = ()
    """IPv4 first."""
    hca: str | None = None
    """The InfiniBand device behind it, as NCCL_IB_HCA and UCX_NET_DEVICES name it (`mlx5_0:1`)."""
    is_roce: bool = False
    """That device speaks Ethernet."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """One machine as the launcher sees it; `cores` are those this process may use."""

    name: str
    cores: tuple[Core, ...]
    memory_bytes: int
    gpus: tuple[str, ...] = ()
    """Names of the GPUs, in their index order."""
    gpu_ids: tuple[str, ...] = ()
    """What tells each GPU from all others, in the order of `gpus`; empty when not known."""
    gpu_numa: tuple[int | None, ...] = ()
    """NUMA domain of each GPU, in the order of `gpus`; empty when not known."""
    nics: tuple[Nic, ...] = ()
    """Without the loopback; the fastest first."""
    cpu_model: str = ""
    cpu_limit: float | None = None
    """Processors' worth of time that the control group grants; None without a limit."""
    num_logical_cores: int | None = None
    """Of the whole machine, granted or not."""
    address: str = "127.0.0.1"
    """At which the other hosts of the job reach this one."""
    interface: str | None = None
    """That this address belongs to."""
    rails: tuple[str, ...] = ()
    """Interfaces in the network of the job, this one among them, over each of which a rank may talk."""

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
    gpu_on_host: int | None = None
    """Its place in the host's `gpus` where a scheduler shows this rank some alone, which `gpu` counts; None: equal."""
    numa: tuple[int, ...] = ()
    """NUMA domains its memory is bound to; empty when it is not bound."""
    nic: Nic | None = None
    """The nearest one, where the host has several."""
    rail: str | None = None
    """Its interface for plain sockets, where that need not be the host's."""
    port: int = 0
    """Free for this rank on its host when the job began; for frameworks in which every rank listens."""


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
