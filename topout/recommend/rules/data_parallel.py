"""torch.nn.DataParallel drives several GPUs from one process.

Why it matters. DataParallel copies the model to every GPU in each forward, runs all GPUs from
threads of one Python interpreter, and gathers outputs on the first GPU, which fills up first.
PyTorch itself advises DistributedDataParallel, also on a single machine.

How it is measured. The script makes a torch.nn.DataParallel. Its copies happen inside forward and
cannot be told apart there, so the gain assumes that half of forward and backward, and all copies,
can be saved.

What to do. One process a GPU:

    dist.init_process_group("nccl")
    torch.cuda.set_device(local_rank)
    model = DistributedDataParallel(model.to(local_rank), device_ids=[local_rank])
    sampler = DistributedSampler(train_set)

and start it with `topout run -n 4 train.py`. The batch size is then that of one GPU.

Not a problem when a script only evaluates, or runs once and briefly.

Reference: https://pytorch.org/docs/stable/generated/torch.nn.DataParallel.html
"""

from topout.schema.finding import Rule
from topout.schema.measures import Environment, Measures
from topout.schema.shares import share_of


def _gain(measures: Measures) -> float | None:
    compute, copies = share_of(measures, "forward", "backward", times=0.5), share_of(measures, "copy")
    return None if compute is None or copies is None else compute + copies


RULE = Rule(
    code="DP01",
    title="DataParallel instead of DistributedDataParallel",
    when=lambda m: m.environment.uses_data_parallel is True,
    because="One process drives all GPUs and copies the model to each in every step (the gain assumes half "
    "of compute).",
    advise="Use DistributedDataParallel with one rank a GPU: topout run -n GPUS train.py.",
    gain=_gain,
    changes=("ddp",),
    fires_on=Measures(environment=Environment(uses_data_parallel=True), shares={"forward": 0.5, "backward": 0.4}),
    quiet_on=Measures(environment=Environment(uses_data_parallel=False), shares={"forward": 0.5, "backward": 0.4}),
)
