"""A training job as a scaling model sees it: one step on one rank, and what goes on around it.

Read from TOML (`jobs/`, or your own file) or from what `topout calibrate` wrote; every number may be
`{value, low, high}`, an 80 % range.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Compute:
    """Seconds of one rank that waits for nobody."""

    forward_s: float
    backward_s: float
    optimizer_s: float = 0.0
    persistent: float = 0.0
    """Spread between ranks that stays: some are slower for good. Relative to the step."""
    transient: float = 0.0
    """Spread between steps of one rank, relative to the step."""
    cores: float = 0.0
    """That a rank keeps busy meanwhile, its loader's included; zero: not known, or of no account."""
    backward_cores: float = 0.0
    """The same in backward, without what messages need; zero: as `cores`."""


@dataclass(frozen=True, kw_only=True)
class Gradients:
    bytes: float
    tensors: int
    groups: int = 8
    """In how many parts they travel."""
    first_ready: float = 0.2
    """Share of backward after which the first group is complete; the last is at the end."""
    ready: tuple[float, ...] = ()
    """The same of each group, where it was seen; counts only while it has as many entries as there are groups."""
    shares: tuple[float, ...] = ()
    """Of the bytes, of each group, likewise; else they are equal."""
    overlaps: bool = True
    """Whether groups travel while backward goes on."""
    negotiation: str = "none"
    """`none` (DDP), `coordinator` (Horovod without cache) or `bitvector`."""
    message_s: float = 0.0
    """What a coordinator needs for one tensor of one rank."""


@dataclass(frozen=True, kw_only=True)
class Input:
    samples: int
    """Of one rank's step."""
    batches: int = 1
    """In how many it computes them, one after another, before gradients travel: memory holds one of them at a time."""
    source: str = "none"
    """`none`, `shared`, `local` or `cached`: as much on local storage as it holds, the rest shared."""
    sample_bytes: float = 0.0
    opens_per_sample: float = 0.0
    dataset_bytes: float = 0.0
    loader_samples_per_s: float = 0.0
    """What the processors of one rank can prepare; zero: no limit."""
    spread: float = 0.0
    """Between batches of one node, relative."""
    prefetch: int = 4


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    samples: int = 0
    samples_per_s: float = 0.0
    """Of one rank."""
    every_steps: int = 0
    every_samples: float = 0.0
    """Trained on by all ranks from one to the next, as those of an epoch; above zero it counts, not `every_steps`."""
    is_sharded: bool = True


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    bytes: float = 0.0
    every_steps: int = 0
    every_samples: float = 0.0
    """As of an evaluation."""
    is_blocking: bool = True
    bytes_per_s: float = 0.0
    """At which it is written."""


@dataclass(frozen=True, kw_only=True)
class Failures:
    node_hours: float = 0.0
    """Between two failures of one node; zero: they do not fail."""
    restart_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What the whole model holds on one rank that trains it alone; zero: not known. For `mesh_proposal`."""

    parameter_bytes: float = 0.0
    gradient_bytes: float = 0.0
    """Zero: as much as the parameters."""
    optimizer_bytes: float = 0.0
    activation_bytes: float = 0.0
    """Kept for backward, of one sample."""
    blocks: int = 0
    """Layers of equal kind, one after another; tensor and pipeline parallelism cut along them."""
    boundary_bytes: float = 0.0
    """Of one sample between two blocks; zero: a seventeenth of a block's activations, as in a transformer."""
    device_bytes: float = 0.0
    """Zero: what the hardware table says of the system's device."""


@dataclass(frozen=True, kw_only=True)
class Job:
    title: str
    source: str = ""
    device: str = ""
    """What `compute` was measured on, a name of `topout hardware`."""
    calibrated_nodes: int = 0
    """On how many at most its numbers were measured or fitted; zero: not known."""
    compute: Compute
    gradients: Gradients
    input: Input
    evaluation: Evaluation = field(default_factory=Evaluation)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    failures: Failures = field(default_factory=Failures)
    memory: Memory = field(default_factory=Memory)
