"""What a script does after its first batch, where ranks have random numbers of their own; rank by rank into a file."""

import gc
import json
import os

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
IS_ALONE = "WORLD_SIZE" not in os.environ
inputs = torch.randn(64, 4)
DATA = TensorDataset(inputs, inputs.sum(1, keepdim=True))
FOUND = {}


def loader(**options):
    return DataLoader(DATA, 16 if IS_ALONE else 8, **options)


# before the first batch, again and again: whoever reads it must find it whole
for _ in range(20):
    torch.save({"weights": torch.ones(1000)}, "first.pt")
    assert torch.load("first.pt")["weights"].sum() == 1000

# parts of backward call backward themselves, and gradients add up
first, middle, last = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 1)
model = nn.ModuleList([first, middle, last])
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
model.train()
batches = loader()
total = 0.0
for number, (x, y) in enumerate(batches):
    if number % 2 == 0:
        optimizer.zero_grad()
    hidden = checkpoint(middle, torch.tanh(first(x)), use_reentrant=True)
    nn.functional.mse_loss(last(hidden), y).backward()
    total += 1.0
FOUND["reentrant"] = [parameter.grad.tolist() for parameter in model.parameters()]
model.eval()
FOUND["mean"] = total / len(batches)


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("directions", torch.randn(4, 8))
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.frozen(torch.cos(x @ self.directions)))


# a second model
del optimizer
features = Features()
optimizer = torch.optim.SGD(features.head.parameters(), lr=0.01)
features.train()
for x, y in loader(shuffle=True):
    optimizer.zero_grad()
    nn.functional.mse_loss(features(x), y).backward()
    optimizer.step()
FOUND["second"] = [value.tolist() for value in features.state_dict().values()]

# one that is made when the first batch has shown its size
made = None
for x, y in loader(shuffle=True):
    if made is None:
        made = nn.Linear(x.shape[1], 1)
        optimizer = torch.optim.SGD(made.parameters(), lr=0.01)
    optimizer.zero_grad()
    nn.functional.mse_loss(made(x), y).backward()
    optimizer.step()
FOUND["made"] = [value.tolist() for value in made.state_dict().values()]

# optimizers replaced for the same parameters, in cycles that one rank alone collects
gc.collect()
gc.disable()
replaced = nn.Linear(4, 1)
nn.init.constant_(replaced.weight, 0.5)
nn.init.constant_(replaced.bias, 0.5)
for rate in (0.1, 0.01, 0.05):
    optimizer = torch.optim.SGD(replaced.parameters(), lr=rate)
    optimizer.itself = optimizer
    if os.environ.get("RANK") == "1":
        gc.collect()
    for x, y in loader():
        optimizer.zero_grad(set_to_none=False)
        nn.functional.mse_loss(replaced(x), y).backward()
        optimizer.step()
FOUND["replaced"] = [value.tolist() for value in replaced.state_dict().values()]
FOUND["hooks while some rank has them"] = len(replaced.weight._post_accumulate_grad_hooks or ())
gc.enable()
gc.collect()
for x, y in loader():
    nn.functional.mse_loss(replaced(x), y).backward()
FOUND["hooks"] = len(replaced.weight._post_accumulate_grad_hooks or ())


def train(network, optimizer, batches):
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(network(x), y).backward()
        optimizer.step()


# one model for all folds, initialised again before or after its optimizer is made anew
folded = nn.Linear(4, 1)
for is_before in (True, True, False):
    if is_before:
        folded.reset_parameters()
    optimizer = torch.optim.SGD(folded.parameters(), lr=0.01)
    if not is_before:
        folded.reset_parameters()
    train(folded, optimizer, loader())
FOUND["folded"] = [value.tolist() for value in folded.state_dict().values()]

# a perturbation for each sample, by an optimizer of its own
attacked = nn.Linear(4, 1)
nn.init.constant_(attacked.weight, 0.5)
nn.init.constant_(attacked.bias, 0.5)
optimizer = torch.optim.SGD(attacked.parameters(), lr=0.05)
for x, y in loader():
    delta = torch.zeros_like(x, requires_grad=True)
    ascent = torch.optim.SGD([delta], lr=0.1)
    for _ in range(3):
        ascent.zero_grad()
        (-nn.functional.mse_loss(attacked(x + delta), y, reduction="sum")).backward()
        ascent.step()
    train(attacked, optimizer, [(x + delta.detach(), y)])
FOUND["attacked"] = [value.tolist() for value in attacked.state_dict().values()]

# batches that are read ahead of their training
ahead = nn.Linear(4, 1)
nn.init.constant_(ahead.weight, 0.5)
nn.init.constant_(ahead.bias, 0.5)
read = list(loader())
train(ahead, torch.optim.SGD(ahead.parameters(), lr=0.1), read + read)
FOUND["ahead"] = [value.tolist() for value in ahead.state_dict().values()]

# a loader may be begun anew for every step; nothing is said while all is well
for _ in range(20):
    train(ahead, torch.optim.SGD(ahead.parameters(), lr=0.1), [next(iter(loader(shuffle=True)))])

# an averaged copy has no parameter that any optimizer holds
normalised = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
averaged = AveragedModel(normalised)
optimizer = torch.optim.SGD(normalised.parameters(), lr=0.01)
for _ in range(2):
    normalised.train()
    train(normalised, optimizer, loader(shuffle=True))
    averaged.update_parameters(normalised)
FOUND["own statistics"] = averaged.module[1].running_mean.tolist()
averaged.eval()
FOUND["averaged statistics"] = averaged.module[1].running_mean.tolist()

# what evaluation draws: the order of a shuffled loader that is left early, dropout, augmentation in workers
FOUND["drawn"], FOUND["drawn in training"] = [], []


class Augmented(TensorDataset):
    def __getitem__(self, number):
        x, y = super().__getitem__(number)
        return x + torch.randn(4), y


for num_workers in (0, 1):
    normalised.train()
    train(normalised, optimizer, loader(shuffle=True))
    normalised.eval()
    with torch.no_grad():
        for number, (x, _) in enumerate(DataLoader(Augmented(*DATA.tensors), 4, shuffle=True, num_workers=num_workers)):
            if number == 2:
                break
            FOUND["drawn"].append([x.tolist(), nn.functional.dropout(x).tolist()])
    FOUND["drawn in training"].append(torch.randn(4).tolist())
held = iter(DataLoader(DATA, 4, shuffle=True))
for _ in range(2):
    with torch.no_grad():
        FOUND["drawn"].append(next(held)[0].tolist())
    normalised.train()
    FOUND["drawn in training"].append(torch.randn(4).tolist())
    train(normalised, optimizer, loader(shuffle=True))
    normalised.eval()

with open(f"later.{os.environ.get('RANK', 'alone')}", "w") as file:
    json.dump(FOUND, file)
