"""One rank evaluates while the others wait.

Why it matters. `if rank == 0: evaluate()` is easy to write, and its cost grows with the job: on 64
ranks, 63 devices idle for as long as one needs for the whole validation set. By Amdahl's law this
alone caps the speed-up.

How it is measured. The time in which one rank, or at most half of them, is in an evaluation (a
model in evaluation mode, or a loader that no backward follows) while most others wait at their next
collective. Time in which such a rank saves is that of CK01.

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
    title="One rank evaluates while the others wait",
    measure="serial.single_rank_evaluation_share",
    above=0.03,
    when=lambda m: m.environment.num_ranks > 1,
    because="For {value:.0%} of the time evaluation runs on a part of the ranks[, and {serial.num_waiting:.0f} of "
    "{environment.num_ranks} ranks wait for it].",
    advise="Let every rank evaluate its part (DistributedSampler) and all_reduce the counts, or evaluate "
    "from checkpoints.",
    changes=("parallel-evaluation",),
    fires_on=Measures(
        environment=Environment(num_ranks=4),
        serial=Serial(single_rank_share=0.20, single_rank_evaluation_share=0.20, num_waiting=3.0, ranks=(0,)),
    ),
    quiet_on=Measures(
        environment=Environment(num_ranks=4),
        serial=Serial(checkpoint_share=0.05, single_rank_share=0.20, single_rank_evaluation_share=0.0, ranks=(0,)),
    ),
)
