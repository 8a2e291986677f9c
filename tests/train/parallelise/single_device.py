"""Small trainings as people write them for one device; knows nothing of ranks but the file in which it leaves results.

    python single_device.py BATCH_SIZE RESULTS KIND…

With two ranks and half the batch size, --ddp must come to the same parameters.
"""

import json
import os
import pickle
import sys
from itertools import islice

import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

BATCH_SIZE = int(sys.argv[1])
NUM_SAMPLES = 64


class FixedOrder(Sampler):
    def __len__(self):
        return NUM_SAMPLES

    def __iter__(self):
        return iter([(number * 37) % NUM_SAMPLES for number in range(NUM_SAMPLES)])


def data(**options):
    generator = torch.Generator().manual_seed(3)
    inputs, labels = torch.randn(NUM_SAMPLES, 4, generator=generator), torch.randn(NUM_SAMPLES, 2, generator=generator)
    if options.pop("has_inf", False):
        inputs[37] = float("inf")
    return TensorDataset(inputs, labels), options


def loader(**options):
    dataset, options = data(**options)
    return DataLoader(dataset, batch_size=BATCH_SIZE, sampler=FixedOrder(), **options)


def make_model(seed=7):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def flat(*models):
    return [value for model in models for p in model.parameters() for value in p.detach().reshape(-1).tolist()]


def train(kind):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0) if kind == "scaler" else None
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    batches = loader(has_inf=kind == "scaler", num_workers=1 if kind == "workers" else 0)
    for _ in range(2):
        total = 0.0
        for number, (inputs, labels) in enumerate(batches):
            loss = nn.functional.mse_loss(model(inputs), labels)
            total += loss.item()
            if kind == "accumulated":
                # 4 batches: steps after the third and after the last
                loss.backward()
                if number in (2, 3):
                    optimizer.step()
                    optimizer.zero_grad()
                continue
            optimizer.zero_grad(set_to_none=kind != "kept")
            if scaler is not None:
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
                continue
            loss.backward()
            if kind == "clipped":
                nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            if kind == "clipped by hand":
                norm = sum(p.grad.square().sum() for p in model.parameters()).sqrt()
                for p in model.parameters():
                    p.grad *= 0.05 / norm
            optimizer.step()
        if kind == "plateau":
            scheduler.step(total / len(batches))
    if kind == "plateau":
        return [scheduler.best]
    return flat(model)


def closure():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, labels in loader():

        def run(inputs=inputs, labels=labels):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), labels)
            loss.backward()
            return loss

        optimizer.step(run)
    return flat(model)


def adversaries():
    first, second = make_model(1), nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (first, second)]
    for inputs, labels in loader():
        second.zero_grad()
        second(labels).mean().backward()
        second(first(inputs).detach()).mean().neg().backward()
        optimizers[1].step()
        first.zero_grad()
        second(first(inputs)).square().mean().backward()
        optimizers[0].step()
    return flat(first, second)


def frozen_in_between():
    """The second is frozen while the first learns, and steps after."""
    first, second = make_model(1), nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (first, second)]
    for inputs, labels in loader():
        second.requires_grad_(True)
        second.zero_grad()
        (second(labels) - second(first(inputs).detach())).square().mean().backward()
        second.requires_grad_(False)
        first.zero_grad()
        second(first(inputs)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    return flat(first, second)


def compiled():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend="eager")
    def step(inputs, labels):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), labels).backward()
        optimizer.step()

    for inputs, labels in loader():
        step(inputs, labels)
    return flat(model)


def frozen():
    """The first layer is frozen until the second epoch, and the last is never used."""
    torch.manual_seed(2)
    model = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(1, 1)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    model[0].requires_grad_(False)
    for epoch in range(2):
        model[0].requires_grad_(epoch == 1)
        for inputs, labels in loader():
            optimizer.zero_grad()
            nn.functional.mse_loss(model[1](model[0](inputs)), labels).backward()
            optimizer.step()
    return flat(model)


def evaluated():
    """Counts what evaluation sees, also of a loader that shuffles, and what a checkpoint holds."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset, _ = data()
    model.train()
    for inputs, labels in DataLoader(dataset, batch_size=BATCH_SIZE):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), labels).backward()
        optimizer.step()
    model.eval()
    num_in_evaluation = sum(len(inputs) for inputs, _ in DataLoader(dataset, batch_size=4, shuffle=True))
    model.train()
    with torch.no_grad():
        num_without_gradients = sum(len(inputs) for inputs, _ in DataLoader(dataset, batch_size=4, shuffle=True))
    torch.save(model.state_dict(), "model.pt")
    saved = torch.load("model.pt", weights_only=True)
    return {
        "seen": [num_in_evaluation, num_without_gradients],
        "saved": all(torch.equal(saved[name], value) for name, value in model.state_dict().items()),
        "steps": len(DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True)),
        "trained": flat(model),
    }


def partly_evaluating():
    """A part of the model in evaluation mode does not make the next loop an evaluation."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    torch.manual_seed(9)
    for p in model.parameters():
        nn.init.normal_(p)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    model[1].eval()
    for inputs, labels in loader():
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), labels).backward()
        optimizer.step()
    return flat(model)


def added():
    """Gradients of two losses, the first kept over the second's pass."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, labels in loader():
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), labels).backward()
        kept = [parameter.grad for parameter in model.parameters()]
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        for parameter, gradient in zip(model.parameters(), kept, strict=True):
            parameter.grad += 0.5 * gradient
        optimizer.step()
    return flat(model)


class Scaled(DataLoader):
    """As the loaders of people that move batches to a device."""

    def __iter__(self):
        for inputs, labels in super().__iter__():
            yield inputs / 2, labels


class Turning:
    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return self

    def __next__(self):
        inputs, labels = next(self.batches)
        return 1 - inputs, labels


class Turned(DataLoader):
    """As the loaders of graphs: a method collates, and what workers have sampled becomes a batch in the iterator."""

    def __init__(self, dataset, **options):
        super().__init__(dataset, collate_fn=self.collate, **options)

    def collate(self, samples):
        return [torch.stack(values) for values in zip(*samples, strict=True)]

    def _get_iterator(self):
        return Turning(super()._get_iterator())


class TurnedAndScaled(Turned, Scaled):
    pass


def of_own_class(kind):
    """Each batch passes once through what the class does to it; spawned workers are given the loader."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset, _ = data()
    batches = kind(dataset, batch_size=BATCH_SIZE, sampler=FixedOrder())
    for inputs, labels in batches:
        pickle.loads(pickle.dumps(batches)).collate([(inputs, labels)])
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), labels).backward()
        optimizer.step()
    return flat(model)


def looked_at(is_held):
    """Evaluation of a few batches within the training loop, from a loader of the script's own class."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset, _ = data()
    validation = DataLoader(dataset, batch_size=4)
    held = None
    model.train()
    for inputs, labels in Scaled(dataset, batch_size=BATCH_SIZE, sampler=FixedOrder()):
        model.eval()
        with torch.no_grad():
            held = held or iter(validation)
            for batch, _ in islice(held if is_held else validation, 2):
                model(batch)
        if is_held:
            model.train()
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), labels).backward()
        optimizer.step()
    return flat(model)


def statistics():
    """BatchNorm's statistics are of each rank's own batches until evaluation."""
    torch.manual_seed(4)
    model = nn.BatchNorm1d(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, _ in loader():
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        optimizer.step()
    before = model.running_mean.tolist()
    model.eval()
    after = model.running_mean.tolist()
    model.train()
    return [before, after]


if __name__ == "__main__":
    found = {kind: train(kind) for kind in sys.argv[3:]}
    found |= {"closure": closure(), "adversaries": adversaries(), "frozen": frozen(), "evaluated": evaluated()}
    found |= {"frozen in between": frozen_in_between(), "compiled": compiled()}
    found |= {"partly": partly_evaluating(), "statistics": statistics()}
    found |= {"added": added(), "looked at": looked_at(False), "looked at by turns": looked_at(True)}
    found |= {"turned": of_own_class(Turned), "turned and scaled": of_own_class(TurnedAndScaled)}
    torch.manual_seed(0)
    dropped = nn.functional.dropout(torch.ones(64))
    found["dropout"] = dropped.tolist()
    with open(f"{sys.argv[2]}.{os.environ.get('RANK', 'alone')}", "w") as file:
        json.dump(found, file)
