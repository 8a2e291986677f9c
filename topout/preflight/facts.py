"""What the probe of one host found: numbers and names without a judgement. Written by probes as JSON, read by judges.

None, and a missing entry, is "not measured"; `not_measured` says why. Not for comparing hosts; judges do that.
"""

from dataclasses import dataclass, field

from topout.host.gpu_links import GpuLinks
from topout.host.hwloc import HwlocOpinion

FACTS_VERSION = 1
FOLDER = "doctor"
"""Of the run folder; each host writes its findings into it."""
RUN_FOLDER = "run folder"
"""A place's purpose."""
BACKWARD = "convolution backward"
SMALL_PRODUCT = "small product"
BY_ONEDNN, WITHOUT_ONEDNN = "torch by oneDNN", "torch without oneDNN"
"""The libraries of its two kernels."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the system grants a process of this user; None is no limit, or not known (see each)."""

    memory_bytes: int
    """The machine's, or the control group's where that is less."""
    machine_memory_bytes: int
    available_bytes: int | None = None
    swap_bytes: int = 0
    swap_used_bytes: int = 0
    shm_bytes: int | None = None
    """Size of /dev/shm; None when there is none."""
    shm_free_bytes: int | None = None
    open_files: int | None = None
    """Soft limits; None: unlimited."""
    open_files_hard: int | None = None
    processes: int | None = None
    locked_bytes: int | None = None
    stack_bytes: int | None = None
    huge_pages: str | None = None
    """Transparent huge pages: `always`, `madvise`, `never`."""
    governor: str | None = None
    """How the clock is steered; None in most virtual machines."""
    cpu_limit: float | None = None
    """Processors' worth of time that the control group grants; None: no limit."""
    num_cores: int = 1
    """Logical processors this process may use."""
    steal_share: float | None = None
    """Of the time looked at, what the hypervisor gave to others."""
    load_per_core: float | None = None
    """Processes that wanted to run before the doctor began, for each processor of the machine."""
    traps: dict[str, str] = field(default_factory=dict)
    """Variables that narrow a process to one core, as set by the user."""
    name_address: str | None = None
    """What this host's own name resolves to; None when it does not."""
    infiniband: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Framework:
    """torch as it is installed here."""

    version: str
    cpu_capability: str
    """What torch's own kernels use: `AVX512`, `AVX2`, `DEFAULT`, …"""
    forced: dict[str, str] = field(default_factory=dict)
    """Variables by which somebody forbids instructions."""
    has_mkl: bool = False
    has_onednn: bool = False
    has_openmp: bool = False
    has_distributed: bool = False
    has_gloo: bool = False
    bf16_kernel: str | None = None
    """What oneDNN says it ran for a bfloat16 product, such as `brg_matmul:avx10_1_512_amx`."""
    num_threads: int | None = None
    cuda: str | None = None
    hip: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    gpu_architectures: tuple[str, ...] = ()
    """For which it was built (`sm_90`, `gfx942`)."""
    device_architecture: str | None = None
    """Of the GPU that is here."""
    device_name: str | None = None
    device_problem: str | None = None
    """Why a GPU that the system has cannot be used."""


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One operation, timed."""

    name: str
    """`matrix product`, `small product`, `convolution` and its backward, `recurrent layer`, `triad` or `copy`."""
    shape: str
    dtype: str
    device: str
    """`cpu`, or the GPU's name."""
    library: str
    """`torch` or `numpy`; of small products and convolutions' backward `torch by oneDNN` and `torch without oneDNN`."""
    num_threads: int | None
    flops: float
    moved_bytes: float
    """Least traffic with memory: every operand once."""
    fastest_s: float
    median_s: float
    num_repeats: int
    instructions: str | None = None
    """That were forced for a comparison (`avx2`, `avx512`); None: as it comes."""

    @property
    def flops_per_s(self) -> float:
        return self.flops / self.fastest_s

    @property
    def bytes_per_s(self) -> float:
        return self.moved_bytes / self.fastest_s


@dataclass(frozen=True, kw_only=True)
class LinkSample:
    """One size of message over a link."""

    num_bytes: int
    times_s: tuple[float, ...]
    cpu_s: float | None = None
    """Of one message, on the processors of one rank, all threads together: ranks of a host share them."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """Messages between some ranks, sent again and again."""

    link_class: str
    """`within a host` or `between hosts`."""
    operation: str
    """`point-to-point` (one way) or `all-reduce`."""
    transport: str
    """`tcp`, `gloo` or `nccl`."""
    hosts: tuple[str, ...]
    num_ranks: int
    samples: tuple[LinkSample, ...] = ()
    problem: str | None = None
    """Why nothing got through."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A folder and the file system under it."""

    purpose: str
    """`data`, `run folder`, `temporary folder` or `shared memory`."""
    path: str
    file_system: str | None = None
    """`lustre`, `nfs4`, `ext4`, … as the kernel calls it."""
    mounted_from: str | None = None
    mounted_at: str | None = None
    is_writable: bool = False
    free_bytes: int | None = None
    free_inodes: int | None = None
    opens_per_s: float | None = None
    """Small files opened, read and closed."""
    stats_per_s: float | None = None
    write_bytes_per_s: float | None = None
    """With fsync."""
    read_bytes_per_s: float | None = None
    method: str | None = None
    """Whose files were read: what caches may have helped."""
    num_hosts: int = 1
    """That did the same at the same time."""
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class ImportTime:
    """A fresh interpreter with the stack imported."""

    command: str
    """What was started; `python` is the interpreter of the job."""
    num_hosts: int
    """That did the same at the same time."""
    start_s: float | None = None
    """From starting the process to its first line."""
    numpy_s: float | None = None
    torch_s: float | None = None
    num_files: int | None = None
    """Opened on the way."""
    path: str | None = None
    """Where torch (else numpy) lies."""
    file_system: str | None = None
    container: str | None = None
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class ClockReading:
    """A host's clocks against those of the first host, from the quickest of some round trips."""

    host: str
    at_s: float
    """On the first host's monotonic clock."""
    realtime_offset_s: float
    monotonic_offset_s: float
    uncertainty_s: float
    """Half of the round trip: the offset lies within this of the truth."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything one host's probe found."""

    host: str
    host_number: int
    version: int = FACTS_VERSION
    address: str | None = None
    """At which the other hosts reach this one; None on a single host."""
    interface: str | None = None
    """That this address belongs to."""
    interface_bits_per_s: float | None = None
    """Of a real interface; virtual ones claim any speed."""
    versions: dict[str, str] = field(default_factory=dict)
    hardware: dict[str, str] = field(default_factory=dict)
    gpu_links: GpuLinks | None = None
    """None without GPUs that can be told apart."""
    hwloc: HwlocOpinion | None = None
    """None where it is not installed, or said nothing."""
    limits: Limits | None = None
    framework: Framework | None = None
    kernels: tuple[Kernel, ...] = ()
    links: tuple[Link, ...] = ()
    places: tuple[Place, ...] = ()
    imports: tuple[ImportTime, ...] = ()
    clocks: tuple[ClockReading, ...] = ()
    """Of the other hosts; the first host's probe alone has them."""
    cpu_clock_hz: float | None = None
    cpu_flags: tuple[str, ...] = ()
    """Instruction sets that matter to kernels, of what the processor has."""
    not_measured: dict[str, str] = field(default_factory=dict)
    """Stage -> why it gave nothing."""
    stage: str | None = None
    """What the probe was at when it wrote this; None: it came to its end."""
    stage_seconds: dict[str, float] = field(default_factory=dict)


def findings_name(number: int) -> str:
    """Of the host with this number, inside the run folder."""
    return f"{FOLDER}/rank-{number:05d}.json"
