"""What compressed or rare exchange of gradients brings and costs: bytes, time of a step, accuracy, beside plain DDP.

    python -m benchmarks.compression --machine 2-cores                    # starts two ranks here, over loopback
    RANK=0 WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... python -m benchmarks.compression --machine lab-1gbit

With RANK set it is one rank of a job that somebody else started, on whatever link there is; rank 0 writes the result.

Time: ResNet-18 size (11.2 M parameters, 45 MB of gradients); in each round every way trains one block of steps, in
random order, in the same processes; figures are ratios to plain DDP within a round. Accuracy: the digits recipe to its
end, from the same seeds in every way. Not for choosing a compression for another model: accuracy is that model's own.
"""

import argparse
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext
from datetime import date
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.step_models import make as make_resnet
from topout.recipes import digits
from topout.train.compression import install
from topout.train.compression import make as make_compressor
from topout.train.diloco import DiLoCo
from topout.train.local_sgd import LocalSGD
from topout.train.place import joined

CODECS = ("bf16", "fp16", "int8", "powersgd", "hierarchical")
LOCAL_EVERY, DILOCO_EVERY = 8, 20
WAYS = ("plain DDP", *CODECS, f"local SGD, every {LOCAL_EVERY}", f"DiLoCo, every {DILOCO_EVERY}")
TIMED = ("plain DDP", "plain DDP again", "no exchange", "torch's fp16 hook", *CODECS, WAYS[-2])
LOSSY = tuple(name for name in WAYS if name != "hierarchical")


class Way:
    """One way to exchange gradients, put around a model and its optimizer."""

    def __init__(self, name, model, optimizer, place, **options):
        self.name, self.compressor, self.local = name, None, None
        if name.startswith("local"):
            self.local = LocalSGD(model, place, every=LOCAL_EVERY)
        elif name.startswith("DiLoCo"):
            self.local = DiLoCo(model, optimizer, place, every=DILOCO_EVERY)
        self.model = model if self.local else DistributedDataParallel(model)
        self.num_steps = 0
        self.plain_bytes = 2 * (place.world_size - 1) * sum(p.nbytes for p in model.parameters()) // place.world_size
        if name in CODECS:
            self.compressor = make_compressor(name, place, **options)
            install(self.model, self.compressor)
        elif name == "torch's fp16 hook":
            self.model.register_comm_hook(None, fp16_compress_hook)
        optimizer.register_step_post_hook(self.stepped)
        self.world_size = place.world_size

    def stepped(self, *_):
        self.num_steps += 1
        if self.local:
            self.local.step()

    def bytes_a_step(self):
        """What this rank sent, on average over the steps; of the hook of torch it is known, not counted."""
        if self.compressor:
            return self.compressor.bytes_sent / self.num_steps
        if self.local:
            return 2 * (self.world_size - 1) * self.local.bytes_averaged / self.world_size / self.num_steps
        return self.plain_bytes / (2 if "fp16" in self.name else 1)


# ---- time of a step


def timed_ways(place, rounds, block, host, seed=0):
    """Seconds of a step, by way and round; the first round warms up and does not count."""
    ways = {}
    for name in TIMED:
        model, inputs, targets = make_resnet("resnet18")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        options = {"powersgd": {"start": 0}, "hierarchical": {"host": host}}.get(name, {})
        ways[name] = Way(name, model, optimizer, place, **options), optimizer, inputs, targets
    order, names = random.Random(seed), list(TIMED)
    rows = []
    for number in range(rounds + 1):
        order.shuffle(names)
        row = {}
        for name in names:
            dist.barrier()
            begun = time.perf_counter()
            train_block(*ways[name], block)
            dist.barrier()
            row[name] = (time.perf_counter() - begun) / block
        if number > 0:
            rows.append(row)
    return rows, {name: way.bytes_a_step() for name, (way, *_) in ways.items()}


def train_block(way, optimizer, inputs, targets, block):
    silent = way.model.no_sync() if way.name == "no exchange" else nullcontext()
    with silent:
        for _ in range(block):
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(way.model(inputs), targets).backward()
            optimizer.step()


# ---- accuracy


def accuracy_of(name, place, seed, epochs):
    """Loss of the last epoch, averaged over ranks, accuracy on the test set, bytes a step."""
    torch.manual_seed(seed)
    train_set, test_set = digits.load_digits()
    sampler = DistributedSampler(train_set, place.world_size, place.rank, seed=seed)
    loader = DataLoader(train_set, batch_size=64 // place.world_size, sampler=sampler, drop_last=True)
    model = digits.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=epochs * len(loader))
    way = Way(name, model, optimizer, place)
    loss = 0.0
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        loss = digits.train_epoch(way.model, loader, optimizer, schedule, place.device)
    if way.local:
        way.local.finish()
    mean_loss = torch.tensor(loss / place.world_size, dtype=torch.float64)
    dist.all_reduce(mean_loss)
    accuracy = digits.evaluate(model, test_set, place.device, place.rank, place.world_size)
    return mean_loss.item(), accuracy, way.bytes_a_step() / way.plain_bytes


# ---- the result


def time_table(rows, sent, block):
    step_ms = statistics.median(row["plain DDP"] for row in rows) * 1e3
    yield f"## Time: ResNet-18 size, {len(rows)} rounds of {block} steps; plain DDP {step_ms:.0f} ms"
    yield ""
    yield "| way | step / plain DDP (median over rounds) | lowest – highest | MB sent a step |"
    yield "|---|---|---|---|"
    for name in TIMED:
        ratios = sorted(row[name] / row["plain DDP"] for row in rows)
        megabytes = "0" if name == "no exchange" else f"{sent[name] / 1e6:.1f}"
        yield f"| {name} | {statistics.median(ratios):.2f} | {ratios[0]:.2f} – {ratios[-1]:.2f} | {megabytes} |"
    yield ""
    yield "`plain DDP again` is the same code twice: what noise alone gives. PowerSGD has rank 4. `hierarchical` is"
    yield "counted by what is sent between hosts."
    yield ""


def accuracy_table(results):
    yield "| way | accuracy, mean (lowest – highest) | loss of the last epoch | bytes / plain DDP |"
    yield "|---|---|---|---|"
    for name, runs in results.items():
        losses, accuracies, shares = zip(*runs, strict=True)
        span = f"{min(accuracies):.4f} – {max(accuracies):.4f}"
        yield (
            f"| {name} | {statistics.fmean(accuracies):.4f} ({span}) | {statistics.fmean(losses):.4f} "
            f"| {statistics.fmean(shares):.3f} |"
        )


def measure(options):
    dist.init_process_group("gloo")
    torch.set_num_threads(options.threads)
    place = joined(torch.device("cpu"), local_rank=0, local_world_size=1)
    timed = timed_ways(place, options.rounds, options.block, options.host) if options.rounds else None
    results = {name: [accuracy_of(name, place, s, options.epochs) for s in range(options.seeds)] for name in LOSSY}
    if place.is_first:
        text = [
            "# Compressed and rare exchange of gradients",
            f"{date.today()}; {options.machine}, {platform.machine()}, torch {torch.__version__}; "
            f"{place.world_size} ranks over Gloo, {options.threads} thread each; load {os.getloadavg()[0]:.0f} on "
            f"{os.cpu_count()} cores at the end; made by `benchmarks/compression.py`.",
            "",
            *(time_table(*timed, options.block) if timed else ["Time was not measured.", ""]),
            f"## Accuracy: digits, {options.epochs} epochs, {options.seeds} seeds, PowerSGD after 10 plain steps",
            "",
            *accuracy_table(results),
            "",
        ]
        options.out.mkdir(parents=True, exist_ok=True)
        path = options.out / f"{date.today()}-compression-{options.machine}.md"
        path.write_text("\n".join(text))
        print("\n".join(text))
    dist.barrier()
    dist.destroy_process_group()


def start_ranks(num_ranks):
    """This script again, once for each rank, on this machine."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    variables = {"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    words = [sys.executable, "-m", "benchmarks.compression", *sys.argv[1:]]
    ranks = [subprocess.Popen(words, env={**os.environ, **variables, "RANK": str(r)}) for r in range(num_ranks)]
    return max(rank.wait() for rank in ranks)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--machine", required=True, help="its name in the result's file name")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--ranks", type=int, default=2, help="where RANK is not set")
    parser.add_argument("--host", help="this rank's host, for `hierarchical`, where host names do not tell")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10, help="0: accuracy only, which other load does not change")
    parser.add_argument("--block", type=int, default=LOCAL_EVERY, help="steps of a block; local SGD meets once in 8")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    if "RANK" not in os.environ:
        sys.exit(start_ranks(options.ranks))
    measure(options)


if __name__ == "__main__":
    main()
