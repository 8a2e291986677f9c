"""Memory goes back to the kernel in every step, and is made anew in the next.

Why it matters. Each step frees its activations and gradients, and the next one needs as much again. glibc hands
blocks of 32 MiB and more back to the kernel as soon as they are freed, smaller ones often, and the kernel clears every
page before it gives it out again: for one fault in 4 KiB. A ResNet-50 on 48 images took 3.4 million faults a step on 16
cores: 2.6 s, and 1.8 s without them; two models that fault little gained nothing.

How it is measured. Page faults of the ranks during steps, and their processor time inside the kernel; the gain is that
time, at most 3 µs for each fault, as a share of computing. Less contention in the kernel may bring more than it says;
less comes of it where the faults are those of batches that loader workers hand over, or of mapped files.

What to do. Try it without an edit, and let `topout compare` say what it brings:

    topout run --keep-memory train.py

The same without topout, for a process that is started with it:

    MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=-1 python train.py

or another allocator by LD_PRELOAD (jemalloc, tcmalloc). Ranks then keep what their largest step took, and more, for
free space lies in pieces: 0 to 26 % in three models, up to twice as much with few very large blocks. Scripts that
call `topout.init()` on CPUs have it already, and where it is in force nothing is advised.

Not a problem when memory is scarce: what is not given back is not there for loader workers or the page cache.

Reference: mallopt(3), M_MMAP_MAX and M_TRIM_THRESHOLD.
"""

from topout.schema.finding import Rule
from topout.schema.measures import Environment, Measures, Memory
from topout.schema.shares import COMPUTE, has_gpu, share_of

_LEAST_GAIN = 0.03
"""Below it the advice would be noise."""


def _made_anew(measures: Measures) -> float | None:
    faults = measures.memory.fault_share
    return share_of(measures, *COMPUTE, times=faults) if faults is not None else None


RULE = Rule(
    code="ME04",
    title="Memory goes back to the kernel in every step",
    when=lambda m: not has_gpu(m) and m.memory.is_kept is None and (_made_anew(m) or 0.0) > _LEAST_GAIN,
    because="A rank takes {memory.faults_per_step:,.0f} page faults a step; "
    "{memory.fault_share:.0%} of its processor time is the kernel's, making pages anew.",
    advise="Try topout run --keep-memory: what a step frees stays for the next one.",
    gain=_made_anew,
    changes=("keep-memory",),
    fires_on=Measures(
        memory=Memory(faults_per_step=650_000.0, fault_share=0.17),
        environment=Environment(processor="x86_64"),
        shares={"forward": 0.3, "backward": 0.6},
    ),
    quiet_on=Measures(
        memory=Memory(faults_per_step=2_000.0, fault_share=0.001),
        environment=Environment(processor="x86_64"),
        shares={"forward": 0.3, "backward": 0.6},
    ),
)
