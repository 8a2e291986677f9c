"""More threads compute than there are cores.

Why it matters. Threads that share a core take turns, and each barrier in a parallel loop waits for
the one that is not running. Two ranks with a thread for every core of the host each are often
slower than one.

How it is measured. Threads of a rank (torch.get_num_threads) times ranks of a host, against the
host's cores. The gain assumes that F threads on a core leave each 1/F of its speed, on the time
that the cores compute: forward, backward and optimizer on a CPU, input and host code beside a GPU.

What to do. Give each rank cores / ranks threads, and loader workers one each:

    OMP_NUM_THREADS=8 srun ... python train.py

`topout run` does this by itself unless OMP_NUM_THREADS is set.

Not a problem when the threads hardly ever compute at the same time.
"""

from topout.schema.finding import Rule
from topout.schema.measures import Environment, Measures
from topout.schema.shares import COMPUTE, has_gpu, ranks_per_host, share_of


def _threads_per_core(measures: Measures) -> float:
    seen = measures.environment
    if not seen.num_cores or not seen.threads_per_rank:
        return 0.0
    return seen.threads_per_rank * ranks_per_host(measures) / seen.num_cores


RULE = Rule(
    code="BI01",
    title="More threads compute than there are cores",
    when=lambda m: _threads_per_core(m) > 1,
    because="{environment.num_cores} cores of a host run {ranks_per_host:.0f} x {environment.threads_per_rank} threads "
    "(ranks x threads of each).",
    advise="Set OMP_NUM_THREADS to the cores of a host divided by its ranks, or leave it unset and let "
    "topout run choose.",
    gain=lambda m: share_of(
        m, *(("input", "other") if has_gpu(m) else COMPUTE), times=max(0.0, 1 - 1 / max(_threads_per_core(m), 1.0))
    ),
    changes=("threads",),
    fires_on=Measures(
        environment=Environment(num_ranks=4, num_cores=8, threads_per_rank=8), shares={"forward": 0.3, "backward": 0.6}
    ),
    quiet_on=Measures(
        environment=Environment(num_ranks=4, num_cores=8, threads_per_rank=2), shares={"forward": 0.3, "backward": 0.6}
    ),
)
