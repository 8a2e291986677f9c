"""What cannot be made data-parallel safely, one after the other; the last one ends the script."""

import json
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

DATA = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
SAID = {}


def refused(name):
    def run(function):
        try:
            function()
        except Exception as error:
            SAID[name] = str(error)

    return run


def trainer(optimizer_class=torch.optim.SGD):
    model = nn.Linear(4, 1)
    return model, optimizer_class(model.parameters(), lr=0.1)


@refused("no loader")
def _():
    model, _ = trainer()
    model(torch.ones(2, 4)).sum().backward()


@refused("in order")
def _():
    model, _ = trainer()
    for inputs, _ in DataLoader(DATA, batch_size=4):
        model(inputs).sum().backward()


@refused("stream")
def _():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(DATA)

    model, _ = trainer()
    for inputs, _ in DataLoader(Stream(), batch_size=4):
        model(inputs).sum().backward()


@refused("counted")
def _():
    model, _ = trainer()
    sum(len(model(inputs)) for inputs, _ in DataLoader(DATA, batch_size=4, shuffle=True))
    # until here the batches may have been read ahead
    iter(DataLoader(DATA, batch_size=4))


@refused("one batch")
def _():
    model, _ = trainer()
    inputs, _ = next(iter(DataLoader(DATA, batch_size=5)))
    model(inputs).sum().backward()


@refused("LBFGS")
def _():
    model, optimizer = trainer(torch.optim.LBFGS)
    for inputs, _ in DataLoader(DATA, batch_size=4, shuffle=True):
        optimizer.step(lambda inputs=inputs: model(inputs).sum())


@refused("own gradients")
def _():
    model, optimizer = trainer()
    for inputs, _ in DataLoader(DATA, batch_size=4, shuffle=True):
        model.weight.grad = torch.autograd.grad(model(inputs).sum(), [model.weight])[0]
        optimizer.step()


@refused("DataParallel")
def _():
    nn.DataParallel(nn.Linear(1, 1))


with open(f"said.{os.environ['RANK']}", "w") as file:
    json.dump(SAID, file)

model, _ = trainer()
with torch.no_grad():
    for p in model.parameters():
        p.fill_(float(os.environ["RANK"]))
model.eval()
