"""One rank evaluates or saves while the others wait.

Why it matters. `if rank == 0: evaluate()` is easy to write, and its cost grows with the job: on 64
ranks, 63 devices idle for as long as one needs for the whole validation set. By Amdahl's law this
alone caps the speed-up.

How it is measured. The time in which one rank is in an evaluation (a model in evaluation mode, or a
loader that no backward follows) or in a save while the others wait at their next collective.

What to do. Let every rank evaluate its part and add up the counts:

    sampler = DistributedSampler(validation_set, shuffle=False)
    totals = torch.stack([num_correct, num_seen])
    dist.all_reduce(totals)

Mind the padding of the last batch: DistributedSampler repeats samples so that all ranks get equally
many. Or evaluate in a job of its own, from checkpoints.

Not a problem when evaluation happens once, at the very end.
"""

from topout.schema.finding import Rule
from topout.schema.measures import Environment, Measures, Serial

RULE = Rule(
    code="EV01",
    title="One rank evaluates or saves while the others wait",
    measure="serial.single_rank_share",
    above=0.03,
    when=lambda m: m.environment.num_ranks > 1,
    because="For {value:.0%} of the time a single rank evaluates or saves, and {others} of "
    "{environment.num_ranks} ranks wait.",
    advise="Let every rank evaluate its part (DistributedSampler) and all_reduce the counts, or evaluate "
    "from checkpoints.",
    changes=("parallel-evaluation",),
    fires_on=Measures(environment=Environment(num_ranks=4), serial=Serial(single_rank_share=0.20, ranks=(0,))),
    quiet_on=Measures(environment=Environment(num_ranks=4), serial=Serial(single_rank_share=0.0)),
)
