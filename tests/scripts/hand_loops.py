"""Loops that update parameters by hand, and such that look like it at first; the first argument chooses which."""

import hashlib
import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

STEPS = 40
digest = hashlib.sha256()


def net():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def batches(num=STEPS):
    return ((torch.randn(4, 16), torch.randint(0, 4, (4,))) for _ in range(num))


def backward(model, batch, forward=None):
    loss = nn.functional.cross_entropy((forward or model)(batch[0]), batch[1])
    loss.backward()
    digest.update(loss.detach().numpy().tobytes())


def update(model):
    for parameter in model.parameters():
        parameter.data.add_(parameter.grad, alpha=-0.1)
        parameter.grad = None


def by_hand(num=STEPS, given=None):
    model = net()
    for batch in given or batches(num):
        backward(model, batch)
        update(model)


def few():
    by_hand(6)


def loader():
    data = TensorDataset(torch.randn(STEPS * 4, 16), torch.randint(0, 4, (STEPS * 4,)))
    by_hand(given=DataLoader(data, batch_size=4, num_workers=1))


def twice():
    model = net()
    for batch in batches():
        backward(model, batch)
        backward(model, batch)
        update(model)


def checkpointed():
    model = net()

    def forward(x):
        return checkpoint(model, x.requires_grad_(), use_reentrant=True)

    for batch in batches():
        backward(model, batch, forward)
        update(model)


def accumulated(num):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        for batch in batches(num):
            backward(model, batch)
        optimizer.step()
        optimizer.zero_grad()


def accumulated_8():
    accumulated(8)


def accumulated_32():
    accumulated(32)


def marked():
    import topout

    model = net()
    for number, batch in enumerate(batches(80)):
        backward(model, batch)
        if number >= 40 and number % 2:
            update(model)
            topout.step()


def fails_early():
    model = net()
    for number, batch in enumerate(batches()):
        backward(model, batch)
        if number == 5:
            raise RuntimeError("on the way to the first step")


def killed():
    import os

    by_hand(200)
    import time

    time.sleep(1.2)
    by_hand(200)
    os._exit(7)


torch.manual_seed(3)
globals()[sys.argv[1]]()
print("DIGEST", digest.hexdigest())
