"""Ranks are not bound to cores.

Why it matters. The kernel may move a rank's threads to any core. They leave their caches behind,
and on a host of several sockets their memory too, which is then read across the link between
sockets.

How it is measured. The cores each rank may use are all cores of the host, though several ranks run
there. The gain assumes that a fifth of the time the cores compute can be saved: forward, backward
and optimizer on a CPU, copies and host code beside a GPU.

What to do. `topout run` binds ranks unless told `--no-bind`. With Slurm:

    srun --ntasks-per-node=4 --cpus-per-task=8 --cpu-bind=cores python train.py

Not a problem when the host has one socket and more cores than threads, or its ranks are few and
mostly wait for a GPU.
"""

from topout.schema.finding import Rule
from topout.schema.measures import Environment, Measures
from topout.schema.shares import COMPUTE, has_gpu, ranks_per_host, share_of

RULE = Rule(
    code="BI02",
    title="Ranks are not bound to cores",
    when=lambda m: m.environment.is_bound is False and ranks_per_host(m) > 1 and (m.environment.num_cores or 0) >= 4,
    because="{ranks_per_host:.0f} ranks of a host may use any of its {environment.num_cores} cores (the gain "
    "assumes a fifth).",
    advise="Leave binding on (no --no-bind), or use srun --cpu-bind=cores with --cpus-per-task.",
    gain=lambda m: share_of(m, *(("copy", "other") if has_gpu(m) else COMPUTE), times=0.2),
    changes=("binding",),
    fires_on=Measures(
        environment=Environment(num_ranks=4, num_cores=64, is_bound=False), shares={"forward": 0.3, "backward": 0.6}
    ),
    quiet_on=Measures(
        environment=Environment(num_ranks=1, num_cores=64, is_bound=False), shares={"forward": 0.3, "backward": 0.6}
    ),
)
