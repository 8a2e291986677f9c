"""The numbers that analyses produce, as they stand in `analysis.json`.

`None` means not measured, `0` a measured zero. Shares run from 0 to 1 and refer to the elapsed time of the common
window, averaged over ranks, unless a name says otherwise. Growing this file is a change of the public JSON: raise
`ANALYSIS_VERSION` when a meaning changes, and update the frozen surface test.
"""

from dataclasses import dataclass, field

from topout.schema.usual_samples import whole_samples

ANALYSIS_VERSION = 1

PHASES = (
    "input", "copy", "forward", "backward", "bubble", "tensor", "wait", "transfer", "optimizer", "evaluation",
    "checkpoint", "other",
)  # fmt: skip
"""Where a rank's time goes; the shares of one rank add up to 1."""
COMMUNICATION_PHASES = ("bubble", "tensor", "wait", "transfer")
"""Exposed communication: a pipeline's bubble, tensor-parallel peers, and all other collectives in two parts."""
SERIAL_PHASES = ("evaluation", "checkpoint")
"""What one rank often does while the others wait."""

VERDICTS = (
    "compute", "memory-bandwidth", "memory-size", "input-iops", "input-bandwidth", "input-decode", "host",
    "communication-latency", "communication-bandwidth", "load-imbalance", "serial-phase", "pipeline-bubble",
    "tensor-parallel",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Window:
    """The steady steps that every share refers to: the same stretch of time for all ranks."""

    first_step: int
    last_step: int
    num_steps: int
    num_warmup_steps: int
    """Leading steps left out: compilation, autotuning, first touch."""
    elapsed_ns: int


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Duration of a step inside the window, over steps; a step takes as long as its slowest rank."""

    mean_ns: float
    median_ns: float
    p05_ns: float
    p95_ns: float
    samples_per_s: float | None = None
    """Over all ranks, tensor- and pipeline-parallel peers counted once; needs a DataLoader, whose batches tell it."""
    batches_per_step: int | None = None
    """Of one rank's loader: more than 1 where gradients of several batches add up to a step."""
    samples_per_step: float | None = None
    """Of one rank, on average: the last batch of an epoch may be smaller, and a step may ask several loaders."""


@dataclass(frozen=True, kw_only=True)
class RankTime:
    """Where one rank's window went."""

    rank: int
    host: str
    shares: dict[str, float]
    """One entry a phase of `PHASES`; they add up to 1."""
    busy_step_ns: float
    """Mean time a step until this rank had nothing left to do but wait for others or for the wire."""


@dataclass(frozen=True, kw_only=True)
class Pop:
    """After POP: parallel = load_balance * communication, and communication = serialisation * transfer."""

    parallel_efficiency: float
    load_balance: float
    communication_efficiency: float
    serialisation_efficiency: float | None
    transfer_efficiency: float | None
    work_efficiency: float
    """Of the time outside communication, the share that trains: forward, backward, optimizer, host code around them."""
    overall_efficiency: float
    """parallel_efficiency * work_efficiency"""


@dataclass(frozen=True, kw_only=True)
class Device:
    """The device tree, from kernels seen by --profile. parallel = load_balance * communication * orchestration."""

    parallel_efficiency: float
    load_balance: float
    communication_efficiency: float
    orchestration_efficiency: float
    compute_share: float
    exposed_communication_share: float
    exposed_copy_share: float
    idle_share: float
    tensor_core_share: float | None = None
    """Share of kernel time in kernels that use tensor cores."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """The input pipeline."""

    wait_share: float | None = None
    num_workers: int | None = None
    batch_size: int | None = None
    opens_per_s: float | None = None
    """Files opened from Python, loader workers included, all ranks."""
    directory_scans_per_s: float | None = None
    read_calls_per_s: float | None = None
    read_bytes_per_s: float | None = None
    mean_read_bytes: float | None = None
    running_share: float | None = None
    """Of the loader's busy time, the share on a CPU (transforming). The three add up to 1 with sleeping."""
    opening_share: float | None = None
    reading_share: float | None = None
    limit: str | None = None
    """iops, bandwidth or decode: what the loader spends its time on, when it starves the rank."""


@dataclass(frozen=True, kw_only=True)
class Communication:
    """Collectives, and the part of them that nothing hides."""

    wait_share: float | None = None
    """Waiting for a late rank."""
    transfer_share: float | None = None
    """Moving bytes when all have arrived, latency included."""
    is_split_withheld: bool = False
    """Clocks of hosts disagree by more than the effect: wait and transfer are then given as transfer alone."""
    is_hidden: bool = False
    """It is part of phases that compute, on devices or in compiled functions: these are then upper bounds."""
    clock_skew_ns: float | None = None
    num_collectives_per_step: float | None = None
    bytes_per_step: float | None = None
    mean_message_bytes: float | None = None
    bytes_per_s: float | None = None
    """Bytes of a step over its exposed transfer time."""
    backend: str | None = None


@dataclass(frozen=True, kw_only=True)
class StageTime:
    """What the ranks that hold the same stages of a pipeline did; shares of the window, mean over those ranks."""

    stages: tuple[int, ...]
    ranks: tuple[int, ...]
    compute_share: float
    bubble_share: float


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A pipeline of `torch.distributed.pipelining`: what its schedule costs, and what uneven stages add."""

    schedule: str
    """Class of the schedule, such as Schedule1F1B."""
    num_stages: int
    num_microbatches: int
    stages_per_rank: int = 1
    compute_share: float
    """Forward and backward."""
    bubble_share: float
    """Waiting for neighbouring stages."""
    schedule_bubble_share: float
    """The same as a share of the schedule alone (forward, backward, bubble): what the formula is about."""
    formula_share: float | None = None
    """What the schedule itself makes unavoidable, with stages of equal work and messages that take no time."""
    imbalance: float = 1.0
    """Compute of the slowest stage (of those on one rank) over the mean."""
    slowest_stage: int | None = None
    slowest_rank: int | None = None
    """A rank that holds it; its replicas do the same."""
    stages: tuple[StageTime, ...] = ()
    better_microbatches: int | None = None
    """Micro-batches that would make the bubble small, where they are too few."""
    better_share: float | None = None
    """Predicted: the formula's share with so many."""


@dataclass(frozen=True, kw_only=True)
class TensorParallel:
    """Tensor-parallel peers: collectives inside forward and backward, which nothing can hide."""

    share: float
    wait_share: float | None = None
    """Waiting for a peer that comes late; None where clocks do not allow to tell."""
    transfer_share: float | None = None
    num_collectives_per_step: float
    num_ranks: int | None = None
    """Of one group of peers; None when the mesh did not say."""
    spans_hosts: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A rank that the others wait for."""

    rank: int
    host: str
    phase: str
    excess_share: float
    """How much longer its busy step is than the median rank's, as a share of the step."""
    is_persistent: bool
    """Late in most steps, not now and then."""


@dataclass(frozen=True, kw_only=True)
class Serial:
    """Phases in which the job does not train."""

    evaluation_share: float | None = None
    checkpoint_share: float | None = None
    single_rank_share: float | None = None
    """Share of the time in which one rank, or at most half of them, evaluates or saves while most others wait."""
    single_rank_evaluation_share: float | None = None
    """The part of it in which such a rank evaluates."""
    num_waiting: float | None = None
    """Ranks that wait in that part, on average."""
    ranks: tuple[int, ...] = ()
    steps_per_rollout: float | None = None
    """Where evaluations may as well be rollouts: all were told by the mode of a model alone; steps to each of them."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory, host and device; the largest rank counts."""

    peak_host_bytes: int | None = None
    host_total_bytes: int | None = None
    peak_device_bytes: int | None = None
    device_total_bytes: int | None = None
    parameter_bytes: int | None = None
    gradient_bytes: int | None = None
    optimizer_bytes: int | None = None
    is_sharded: bool = False
    """Ranks held parts of the model, and these bytes are those of a part (FSDP, tensor parallelism)."""
    offloaded_bytes: int | None = None
    """Parameters and optimizer state in the host's memory, of ranks that compute on devices."""
    computes_on_host: bool = False
    """All state lies in the host's memory, and the devices that are there are hardly used."""
    is_kept: bool | None = None
    """What is freed stays with the ranks: by --keep-memory, or by topout.init() on CPUs; False: asked for in vain."""
    is_out_of_memory: bool = False
    ran_out_on: str | None = None
    """`device` or `host`, where an allocation failed."""
    requested_bytes: int | None = None
    """What the allocation that failed asked for."""
    largest_batch: int | None = None
    """Predicted: the largest per-rank batch that would fit."""
    faults_per_step: float | None = None
    """Of a rank, without reading: pages that the kernel makes or maps, most of them memory that went back before."""
    fault_share: float | None = None
    """Of ranks' processor time, the part inside the kernel that page faults can explain."""

    @property
    def ran_out_beside_devices(self) -> bool:
        """On a host whose ranks compute on devices: what a batch takes is not what filled it."""
        return self.ran_out_on == "host" and self.device_total_bytes is not None and not self.computes_on_host


@dataclass(frozen=True, kw_only=True)
class Compute:
    """Arithmetic: how fast, and of what the device could do."""

    flops_per_step: float | None = None
    """Of all ranks, counted on the autograd graph of one step."""
    flops_per_s: float | None = None
    peak_flops_per_s: float | None = None
    peak_origin: str | None = None
    """`table` (hardware.toml), `measured` (a matrix product on the rank's cores) or `assumed` (from its cores)."""
    model_flops_utilisation: float | None = None
    memory_bound_share: float | None = None
    """Of compute time, the share in operations limited by memory bandwidth; needs --profile."""
    host_share: float | None = None
    """Share of the step in which the device had run dry and the host was still preparing work."""


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """The gradient noise scale at the end of the run and on its way there, in samples; None: without limit."""

    value: float | None
    low: float
    high: float | None
    has_drifted: bool
    """It changed more than threefold within the last window."""
    num_samples: int
    """Sampled steps in the last window."""
    batch_size: int
    """Samples of a step, over all ranks."""
    steps: tuple[int, ...] = ()
    values: tuple[float | None, ...] = ()
    lows: tuple[float | None, ...] = ()
    highs: tuple[float | None, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Count:
    """A quantity that the script counted itself with `topout.count`, added up over ranks."""

    name: str
    total: int
    """Of the whole recording."""
    window_total: int | None = None
    """Of the window's steps and evaluations alone; None when there is no window."""
    per_s: float | None = None
    """window_total over the window's elapsed time"""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What the rules need to know about how the job was set up; None where it does not apply or was not seen."""

    num_ranks: int = 1
    num_hosts: int = 1
    device_name: str | None = None
    num_cores: int | None = None
    """Cores of a host."""
    cores_per_rank: int | None = None
    threads_per_rank: int | None = None
    is_bound: bool | None = None
    uses_autocast: bool | None = None
    uses_tf32: bool | None = None
    uses_channels_last: bool | None = None
    has_convolutions: bool | None = None
    processor: str | None = None
    """The instruction set of CPUs that compute gradients, such as aarch64."""
    backward_uses_onednn: bool | None = None
    num_small_products: int | None = None
    """Of a step on CPUs: float32 products of the layout and size that torch hands to oneDNN on ARM, though small."""
    supports_bf16: bool | None = None
    supports_tf32: bool | None = None
    uses_data_parallel: bool | None = None
    """torch.nn.DataParallel, the single-process way to use several GPUs."""
    torch_version: str | None = None


@dataclass(frozen=True, kw_only=True)
class WaterfallBar:
    """One step down from the ideal rate to the measured one."""

    name: str
    share: float
    """Share of the ideal rate lost here."""
    remaining_share: float
    """What is left of the ideal rate after this bar."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What holds the job back, and how we know."""

    name: str
    share: float
    """Share of the time that this cause explains."""
    runner_up: str | None = None
    runner_up_share: float | None = None
    evidence: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    phase: str | None = None


@dataclass(frozen=True, kw_only=True)
class Measures:
    """Everything measured of one run; a part that was not measured is left at its empty default."""

    window: Window | None = None
    step: StepTime | None = None
    shares: dict[str, float] = field(default_factory=dict)
    """Mean over ranks of `RankTime.shares`."""
    ranks: tuple[RankTime, ...] = ()
    pop: Pop | None = None
    device: Device | None = None
    input: Input = field(default_factory=Input)
    communication: Communication = field(default_factory=Communication)
    pipeline: Pipeline | None = None
    tensor_parallel: TensorParallel | None = None
    stragglers: tuple[Straggler, ...] = ()
    serial: Serial = field(default_factory=Serial)
    memory: Memory = field(default_factory=Memory)
    compute: Compute = field(default_factory=Compute)
    noise_scale: NoiseScale | None = None
    environment: Environment = field(default_factory=Environment)
    waterfall: tuple[WaterfallBar, ...] = ()
    counts: tuple[Count, ...] = ()
    """In the order in which the script named them."""
    not_measured: tuple[str, ...] = ()
    """Sentences: what is missing and why."""

    @property
    def rank_samples_per_step(self) -> int | None:
        """Those of its batch, as often as a step takes one; None where the size of a batch was not seen."""
        batches_per_step = self.step.batches_per_step if self.step is not None else None
        seen = self.step.samples_per_step if self.step is not None else None
        return whole_samples(self.input.batch_size, batches_per_step, seen)
