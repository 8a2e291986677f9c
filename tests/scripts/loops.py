"""Eight optimizer steps in the ways people write them; the first argument chooses which."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

STEPS = 8
WORLD = int(os.environ.get("WORLD_SIZE", "1"))


def net():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(inplace=True), nn.Linear(32, 4))


def data(num=STEPS * 4):
    return TensorDataset(torch.randn(num, 16), torch.randint(0, 4, (num,)))


def train(model, batches, optimizer=None, forward=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy((forward or model)(x), y).backward()
        optimizer.step()


def plain():
    train(net(), DataLoader(data(), batch_size=4))


def workers():
    train(net(), DataLoader(data(), batch_size=4, num_workers=2, persistent_workers=True))


class Stream(IterableDataset):
    def __iter__(self):
        yield from ((torch.randn(16), torch.tensor(1)) for _ in range(STEPS * 4))


def iterable():
    train(net(), DataLoader(Stream(), batch_size=4))


def no_loader():
    train(net(), ((torch.randn(4, 16), torch.randint(0, 4, (4,))) for _ in range(STEPS)))


def ddp():
    dist.init_process_group("gloo")
    train(nn.parallel.DistributedDataParallel(net()), DataLoader(data(), batch_size=4))


def accumulation():
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, (x, y) in enumerate(DataLoader(data(STEPS * 8), batch_size=4)):
        if number % 2 == 0:
            with model.no_sync():
                nn.functional.cross_entropy(model(x), y).backward()
        else:
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()


def fsdp2():
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    model = net()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    train(model, DataLoader(data(), batch_size=4), torch.optim.AdamW(model.parameters()))


def several_optimizers():
    one, two = net(), net()
    first, second = torch.optim.SGD(one.parameters(), lr=0.1), torch.optim.Adam(two.parameters())
    for x, y in DataLoader(data(), batch_size=4):
        for model, optimizer in ((one, first), (two, second)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


def scaler_and_autocast():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for number, (x, y) in enumerate(DataLoader(data(), batch_size=4)):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss * (float("inf") if number == 3 else 1.0)).backward()  # the fourth step is skipped
        scaler.step(optimizer)
        scaler.update()


def compiled():
    model = net()
    train(model, DataLoader(data(), batch_size=4), forward=torch.compile(model, fullgraph=True, backend="aot_eager"))


def lbfgs():
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    for x, y in DataLoader(data(), batch_size=4):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)


def fabric():
    from lightning.fabric import Fabric

    runner = Fabric(accelerator="cpu", devices=WORLD, strategy="ddp" if WORLD > 1 else "auto")
    runner.launch()
    model = net()
    model, optimizer = runner.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for x, y in runner.setup_dataloaders(DataLoader(data(STEPS * 4 * WORLD), batch_size=4)):
        optimizer.zero_grad()
        runner.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()


def accelerate():
    from accelerate import Accelerator

    runner = Accelerator(cpu=True)
    model = net()
    model, optimizer, batches = runner.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(data(STEPS * 4 * WORLD), batch_size=4)
    )
    for x, y in batches:
        optimizer.zero_grad()
        runner.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()


if __name__ == "__main__":
    torch.manual_seed(0)
    globals()[sys.argv[1]]()
    print("world", dist.get_world_size() if dist.is_initialized() else 1)
