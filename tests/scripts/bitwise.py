"""Trains several small models and prints a digest of all losses and final weights: equal digests, equal training."""

import hashlib
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

WORLD = int(os.environ.get("WORLD_SIZE", "1"))
RANK = int(os.environ.get("RANK", "0"))


def model():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Dropout(0.1),
        nn.Flatten(),
        nn.Linear(8 * 36, 10),
    )


def loader(num_workers=0):
    data = TensorDataset(torch.randn(96, 1, 8, 8), torch.randint(0, 10, (96,)))
    return DataLoader(data, batch_size=8, shuffle=True, num_workers=num_workers)


def train(net, batches, digest, steps=10, accumulate=1, forward=None):
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    lossf = nn.CrossEntropyLoss()
    forward = forward or net
    for number, (x, y) in enumerate(batches):
        if number == steps * accumulate:
            break
        is_last = (number + 1) % accumulate == 0
        if accumulate > 1 and not is_last and isinstance(net, DDP):
            with net.no_sync():
                loss = lossf(forward(x), y)
                loss.backward()
        else:
            loss = lossf(forward(x), y)
            loss.backward()
        digest.update(loss.detach().numpy().tobytes())
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
    for value in net.state_dict().values():
        digest.update(value.detach().numpy().tobytes())


def averaging_hook(state, bucket):
    work = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return work.then(lambda done: done.value()[0].mul_(1.0 / WORLD))


def case(name, run):
    torch.manual_seed(7 + RANK)
    digest = hashlib.sha256()
    run(digest)
    if RANK == 0:
        print(f"DIGEST {WORLD} {name} {digest.hexdigest()}", flush=True)


def fullgraph(digest):
    net = model()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    train(net, loader(), digest, forward=compiled)


def own_hook(digest):
    net = DDP(model())
    net.register_comm_hook(None, averaging_hook)
    train(net, loader(), digest)


def main():
    torch.set_num_threads(1)
    if WORLD == 1:
        case("in-place activations", lambda d: train(model(), loader(), d))
        case("loader workers", lambda d: train(model(), loader(num_workers=2), d))
        case("fullgraph", fullgraph)
        return
    dist.init_process_group("gloo")
    case("ddp", lambda d: train(DDP(model()), loader(), d))
    if WORLD == 2:
        case("no_sync", lambda d: train(DDP(model()), loader(), d, steps=5, accumulate=2))
        case("own comm hook", own_hook)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
