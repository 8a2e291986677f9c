"""One rank of `step.py`: trains the same model in every way, by turns in one process, and rank 0 writes the times.

Started by `step.py` with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set; not by hand.
"""

import functools
import json
import os
import random
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
import torch.distributed as dist
from step_models import make
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import topout
from topout.record.onednn import onednn

warnings.filterwarnings("ignore")
GRID_MB = (0.25, 1, 2, 5, 10, 50, 100)
WITHOUT_ONEDNN = ("resnet18-own",)
"""Kinds whose backward computes with torch's own kernels in every way: far faster on ARM, slower on x86."""
BESIDE = "no communication, the same bytes beside it"
ALWAYS = ("no communication", BESIDE, "DDP")
BANDWIDTH_BYTES = 32 << 20
NUM_AFTER_SETTLING = 6
"""Until the order of groups is planned, where gradients travel into the next forward."""
OURS = {
    "topout": {},
    "topout, nothing prepared": {"early_update": False},
    "topout, early update": {"early_update": True},
    "topout, into the next forward": {"overlap_forward": True},
    "topout, bf16 allowed": {"compress": "auto"},
}


class Way:
    """One way to train: a model of its own, and what averages its gradients."""

    def __init__(self, kind, wrap=lambda model, optimizer: model, after_backward=lambda model: None, **options):
        model, self.images, self.labels = make(kind)
        self.optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, **options)
        self.model = wrap(model, self.optimizer)
        self.after_backward = after_backward
        self.by_onednn = kind not in WITHOUT_ONEDNN

    def step(self):
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(self.images), self.labels)
        with onednn(self.by_onednn):
            loss.backward()
        self.after_backward(self.model)
        self.optimizer.step()


class Beside(Way):
    """No gradient waits to be sent and nobody for any: what carrying the bytes takes from computing is left."""

    def __init__(self, kind):
        super().__init__(kind)
        self.message = torch.zeros(sum(parameter.numel() for parameter in self.model.parameters()))

    def step(self):
        carried = dist.all_reduce(self.message, async_op=True)
        super().step()
        carried.wait()


def each_parameter(group):
    """As many tutorials have it: one blocking all-reduce a tensor, after backward."""

    def average(model):
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=group)
            parameter.grad /= dist.get_world_size()

    return average


def one_flat(group):
    def average(model):
        gradients = [parameter.grad for parameter in model.parameters()]
        flat = torch._utils._flatten_dense_tensors(gradients)
        dist.all_reduce(flat, group=group)
        flat /= dist.get_world_size()
        for gradient, averaged in zip(gradients, torch._utils._unflatten_dense_tensors(flat, gradients), strict=True):
            gradient.copy_(averaged)

    return average


def ddp(group, **options):
    return lambda model, optimizer: DistributedDataParallel(model, process_group=group, **options)


def sends_nothing(group):
    """What DDP's own work for each parameter takes of a core, beside which no byte travels."""

    def keep(state, bucket):
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    def wrap(model, optimizer):
        wrapped = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
        wrapped.register_comm_hook(None, keep)
        return wrapped

    return wrap


def group_as_torch_makes_it():
    """The peers' group: its threads are scheduled as they are without topout."""
    os.environ["TOPOUT_GLOO_THREADS"] = "normal"
    group = dist.new_group()
    del os.environ["TOPOUT_GLOO_THREADS"]
    return group


def receivers_as_torch_makes_them():
    """None where this torch gives receivers no name to know them by (2.11)."""
    tasks = Path("/proc/self/task").iterdir()
    receivers = [int(task.name) for task in tasks if (task / "comm").read_text() == "gloo_tcp_loop\n"]
    return [os.sched_getscheduler(thread) for thread in receivers].count(os.SCHED_OTHER) if receivers else None


def ours(ctx, **options):
    return lambda model, optimizer: ctx.wrap(model, optimizer, **options)[0]


def ways_of(kind, ctx, only):
    """`only`: names of ways beside computing alone and DDP; empty: all."""
    plain = group_as_torch_makes_it()
    theirs = {
        "no communication": lambda: Way(kind),
        BESIDE: lambda: Beside(kind),
        "each parameter": lambda: Way(kind, after_backward=each_parameter(plain)),
        "one flat tensor after backward": lambda: Way(kind, after_backward=one_flat(plain)),
        "DDP": lambda: Way(kind, ddp(plain)),
        "DDP, fused optimizer": lambda: Way(kind, ddp(plain), fused=True),
        "DDP that sends nothing, fused optimizer": lambda: Way(kind, sends_nothing(plain), fused=True),
        "DDP, threads that give way": lambda: Way(kind, ddp(dist.group.WORLD)),
    }
    for limit in GRID_MB:
        theirs[f"DDP, {limit:g} MB"] = functools.partial(lambda mb: Way(kind, ddp(plain, bucket_cap_mb=mb)), limit)
    unknown = set(only) - theirs.keys() - OURS.keys()
    assert not unknown, f"no way is called {unknown}"
    found = {name: make_it() for name, make_it in theirs.items() if not only or name in (*ALWAYS, *only)}
    for way in found.values():
        for _ in range(3):
            way.step()
    settling = {}
    for name, options in OURS.items():
        if not only or name in only:
            found[name] = Way(kind, ours(ctx, **options))
            settling[name] = settle(found[name], ctx.tuning)
    return found, settling


def settle(way, tuning):
    """Trains until the groups are chosen, and says how that went."""
    count = 0
    while not tuning.is_settled and count < 100:
        way.step()
        count += 1
    for _ in range(NUM_AFTER_SETTLING):
        way.step()
    chosen = tuning.chosen
    return {
        "steps": count,
        "chosen": chosen.name if chosen else "default",
        "groups": len(chosen.limits) if chosen and chosen.limits else None,
        "gain_share": tuning.gain_share,
    }


def timed(function, count):
    dist.barrier()
    start_s = time.perf_counter()
    for _ in range(count):
        function()
    dist.barrier()
    return (time.perf_counter() - start_s) / count


def forward_of(way):
    def forward():
        functional.cross_entropy(way.model(way.images), way.labels)

    return forward


def main(kind, rounds, steps, out, *only):
    torch.set_num_threads(1)
    ctx = topout.init()
    ways, settling = ways_of(kind, ctx, only)
    message = torch.zeros(BANDWIDTH_BYTES // 4)
    times = {name: [] for name in [*ways, "forward", "all-reduce"]}
    shuffled = random.Random(0)
    for _ in range(rounds):
        names = list(times)
        shuffled.shuffle(names)
        for name in names:
            if name == "all-reduce":
                times[name].append(timed(lambda: dist.all_reduce(message), 1))
                continue
            function = forward_of(ways["no communication"]) if name == "forward" else ways[name].step
            function()
            times[name].append(timed(function, steps))
    assert receivers_as_torch_makes_them() in (1, None), "the peers' group is the only one as torch makes it"
    if ctx.is_first:
        parameters = list(ways["DDP"].model.parameters())
        found = {
            "kind": kind,
            "num_tensors": len(parameters),
            "num_bytes": sum(parameter.numel() * 4 for parameter in parameters),
            "settling": settling,
            "bytes_per_s": [BANDWIDTH_BYTES / seconds for seconds in times["all-reduce"]],
            "times_s": times,
        }
        Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
