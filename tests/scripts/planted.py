"""Loops with a known fault: each keeps its own stamps of the time it planted, step by step.

Usage: planted.py FAULT FOLDER. Writes FOLDER/stamps-RANK.json: for each step the seconds from the end of the last
optimizer step to the end of this one, the seconds of them that were planted, and when its last gradient was there, by
a clock that all ranks of a host share.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

FAULT, FOLDER = sys.argv[1], Path(sys.argv[2])
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
STEPS = 40
WIDTH, BATCH = 384, 192


def burn(seconds):
    """Keeps the CPU busy in Python."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(100))


class Samples(Dataset):
    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, index):
        return torch.full((WIDTH,), (index % 7) / 7.0)


class Decoded(Samples):
    """Expensive to decode."""

    def __getitem__(self, index):
        burn(0.0004)
        return super().__getitem__(index)


class SmallFiles(Samples):
    """Every sample is eight small files."""

    def __init__(self):
        FOLDER.mkdir(exist_ok=True)
        for number in range(64):
            (FOLDER / f"small-{number}").write_bytes(b"x" * 512)

    def __getitem__(self, index):
        for number in range(8):
            with open(FOLDER / f"small-{(index + number) % 64}", "rb", buffering=0) as file:
                file.read()
        return super().__getitem__(index)


class LargeFile(Samples):
    """Every batch reads 96 MB that are not in the page cache."""

    BYTES = 96 << 20

    def __init__(self):
        self.path = FOLDER / "large"
        if RANK == 0:
            FOLDER.mkdir(exist_ok=True)
            with open(self.path, "wb") as file:
                for _ in range(self.BYTES >> 20):
                    file.write(os.urandom(1 << 20))
                os.fsync(file.fileno())

    def __getitem__(self, index):
        if index % BATCH == 0:
            with open(self.path, "rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                while file.read(4 << 20):
                    pass
        return super().__getitem__(index)


class SlowBackward(torch.autograd.Function):
    """Sleeps in backward on the last rank."""

    planted_s = 0.0

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        start = time.perf_counter()
        if RANK == WORLD - 1:
            time.sleep(0.06)  # much against the millisecond by which the launcher, on its core, delays rank 0
        SlowBackward.planted_s += time.perf_counter() - start
        return gradient


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        if FAULT == "backward-straggler":
            hidden = SlowBackward.apply(hidden)
        return self.second(hidden)


class SlowFile:
    """A file on slow storage."""

    def write(self, data):
        time.sleep(0.02)
        return len(data)

    def flush(self):
        pass


def evaluate(model, seconds):
    """One rank evaluates, batch by batch, while the others have nothing to do."""
    model.eval()
    with torch.no_grad():
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            model(torch.zeros(BATCH, WIDTH))
    model.train()


def average_by_hand(model, num_messages):
    """Averages gradients with collectives of the script's own; returns the seconds spent in them."""
    gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
    start = time.perf_counter()
    for part in gradients.chunk(num_messages):
        dist.all_reduce(part)
    spent = time.perf_counter() - start
    return spent


def compute_only():
    """Nothing but matrix products."""
    layers = nn.Sequential(*[nn.Linear(768, 768) for _ in range(3)])
    optimizer = torch.optim.SGD(layers.parameters(), lr=1e-3)
    x = torch.randn(256, 768)
    for _ in range(STEPS):
        layers(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def elementwise():
    """Nothing but operations that read and write memory."""
    weights = torch.randn(1_000_000, requires_grad=True)
    optimizer = torch.optim.Adam([weights], lr=1e-3)
    for _ in range(STEPS):
        values = weights
        for _ in range(4):
            values = torch.sigmoid(values) * 1.01 + 0.1
        values.mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def too_large():
    """Activations that no machine holds."""
    net = Model()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for step, x in enumerate(DataLoader(Samples(), batch_size=BATCH)):
        out = net(x)
        if step == 20:
            out = out.repeat(1 << 30, 1)
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def make_loader():
    dataset = {
        "decode": Decoded, "small-files": SmallFiles, "large-file": LargeFile,
        "input-straggler": Decoded if RANK == WORLD - 1 else Samples,
    }.get(FAULT, Samples)()  # fmt: skip
    return DataLoader(dataset, batch_size=BATCH)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if WORLD > 1:
        dist.init_process_group("gloo")
    net = Model()
    by_hand = FAULT in ("bandwidth", "latency")
    model = nn.parallel.DistributedDataParallel(net) if WORLD > 1 and not by_hand else net
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches, stamps, last = iter(make_loader()), [], time.perf_counter()
    arrivals = []
    net.first.weight.register_hook(lambda _: arrivals.append(time.perf_counter()))
    for step in range(STEPS):
        start = time.perf_counter()
        x = next(batches)
        planted_s = time.perf_counter() - start if FAULT in ("decode", "small-files", "large-file") else 0.0
        SlowBackward.planted_s = 0.0
        model(x).square().mean().backward()
        planted_s += SlowBackward.planted_s
        if by_hand:
            planted_s += average_by_hand(net, 1 if FAULT == "bandwidth" else 64)
        optimizer.step()
        optimizer.zero_grad()
        now = time.perf_counter()
        planted_s += stamps_between(stamps)
        stamps.append({"step_s": now - last, "planted_s": planted_s, "arrived_s": arrivals[-1]})
        last = now
        between_steps(net, step)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"stamps-{RANK}.json").write_text(json.dumps(stamps))


_between_s = 0.0


def stamps_between(_stamps):
    """What was planted after the last optimizer step belongs to the step that follows."""
    global _between_s
    taken, _between_s = _between_s, 0.0
    return taken


def between_steps(net, step):
    global _between_s
    start = time.perf_counter()
    if FAULT == "serial-evaluation" and step % 5 == 4 and step < STEPS - 1:
        if RANK == 0:
            evaluate(net, 0.2)
        _between_s = time.perf_counter() - start
    elif FAULT == "checkpoint" and step % 5 == 4 and step < STEPS - 1:
        torch.save(net.state_dict(), SlowFile())
        _between_s = time.perf_counter() - start
    elif FAULT == "host":
        burn(0.02)
        _between_s = time.perf_counter() - start


if __name__ == "__main__":
    {"compute": compute_only, "elementwise": elementwise, "too-large": too_large}.get(FAULT, main)()
