"""A training whose ranks sum gradients in a way of their own, which goes on where it was cut.

    averaged_training.py '{"folder": "checkpoints", "steps": 60, "every": 50, "wrap": {"buckets": "auto"}, "choice": 1}'

`choice` is the candidate that Autotune is made to choose; `wrap` null takes a DDP module of the script's own. Prints on
its last line the step it began at, a digest of the parameters, the groups in force and what was chosen.
"""

import hashlib
import json
import os
import socket
import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import topout
import topout.train.buckets.autotune as autotune
from topout.train.buckets.assignment import in_force
from topout.train.buckets.trial import Choice
from topout.train.checkpoint import Checkpoints
from topout.train.link import Link
from topout.train.prepared import update

WIDTH = 256
hooked = []


def hook(state: object, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A script's own: the mean, as DDP makes it."""
    hooked.append(bucket.index())
    bucket.buffer().mul_(1 / torch.distributed.get_world_size())
    work = torch.distributed.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def take_step(ctx, model, optimizer, number):
    torch.manual_seed(1000 * number + ctx.rank)
    optimizer.zero_grad()
    model(torch.randn(3, WIDTH)).square().mean().backward()
    optimizer.step()


def main(folder, steps, every, wrap, choice=None, busy=0.9, two_hosts=False, own_hook=False):
    torch.set_num_threads(1)
    autotune.measure = lambda place: Link(alpha_s=1e-4, bytes_per_s=1e8, busy_share=busy)
    autotune.trial.choose = lambda times_s, num, default: Choice(candidate=choice, step_s=0.9, default_s=1.0)
    update.WORTH_BYTES = 0
    if two_hosts:
        os.environ["LOCAL_WORLD_SIZE"] = "2"
        socket.gethostname = lambda: "ab"[int(os.environ["RANK"]) // 2]
    ctx = topout.init()
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(7)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if wrap is None:
        model = DistributedDataParallel(model, bucket_cap_mb=1)
        state = {"model": model, "optimizer": optimizer}
        if own_hook:
            model.register_comm_hook(None, hook)
        checkpoints = Checkpoints(folder, state=state, place=ctx.place, every=every)
        checkpoints.restore()
    else:
        model, optimizer = ctx.wrap(model, optimizer, **wrap)
        checkpoints = ctx.checkpoint(folder, every=every)
    began_at = checkpoints.num_steps
    while checkpoints.num_steps < steps:
        take_step(ctx, model, optimizer, checkpoints.num_steps)
        checkpoints.step()
    checkpoints.close()
    ctx.wait()
    values = b"".join(bytes(parameter.detach().numpy()) for parameter in model.parameters())
    chosen = ctx.tuning and ctx.tuning.chosen
    said = {
        "from": began_at,
        "digest": hashlib.sha256(values).hexdigest(),
        "groups": in_force(model),
        "chosen": chosen and chosen.name,
        "prepares": bool(chosen and chosen.prepares),
        "num_hooked": len(hooked),
        "has_tried": bool(ctx.tuning and ctx.tuning._turns),
    }
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
