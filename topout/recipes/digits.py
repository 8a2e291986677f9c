"""Train a small residual CNN on 1,797 handwritten digits: the job `topout run` starts when it is given no script.

A plain training script, as a user would write it, with nothing of topout in it: `python digits.py` trains on one
process, and under any launcher that sets RANK and WORLD_SIZE it trains data-parallel. Not a benchmark: 8x8 pixels keep
no device busy.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

SEED = 7
NUM_TRAIN = 1437


class Residual(nn.Module):
    """x + two convolutions; the shape does not change."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.path(x))


def make_model(width: int = 32) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        Residual(width),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        Residual(2 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, 10),
    )


class Digits(Dataset):
    """Images of 8x8 grey values and labels; with `shift`, an image moves by up to one pixel each time it is read."""

    def __init__(self, images: Tensor, labels: Tensor, shift: bool) -> None:
        self.images = nn.functional.pad(images, (1, 1, 1, 1))
        self.labels = labels
        self.shift = shift

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        row, column = torch.randint(0, 3, (2,)).tolist() if self.shift else (1, 1)
        return self.images[index, :, row : row + 8, column : column + 8], self.labels[index]


def load_digits() -> tuple[Digits, Digits]:
    """Training and test set, cut without shuffling: neighbours in the file share a writer, and the test should not."""
    with np.load(Path(__file__).with_name("digits.npz")) as file:
        images = torch.from_numpy(file["images"]).unsqueeze(1).float().div(16)
        labels = torch.from_numpy(file["labels"]).long()
    return (
        Digits(images[:NUM_TRAIN], labels[:NUM_TRAIN], shift=True),
        Digits(images[NUM_TRAIN:], labels[NUM_TRAIN:], shift=False),
    )


def train_epoch(model, loader, optimizer, schedule, device) -> float:
    """One pass over this rank's part of the training set; the mean loss."""
    model.train()
    total = torch.zeros((), device=device)
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs.to(device)), targets.to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        total += loss.detach()
    return total.item() / len(loader)


@torch.no_grad()
def evaluate(model, test_set, device, rank: int, world_size: int) -> float:
    """Exact accuracy: each rank counts its own slice and the counts are summed.

    A DistributedSampler would repeat samples until the slices are equally long, and the accuracy would be off by them.
    """
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    for inputs, targets in DataLoader(Subset(test_set, range(rank, len(test_set), world_size)), batch_size=256):
        is_right = model(inputs.to(device)).argmax(1) == targets.to(device)
        counts += torch.stack([is_right.sum(), torch.tensor(len(targets), device=device)])
    if world_size > 1:
        dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    options = parser.parse_args()

    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if world_size > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    torch.manual_seed(SEED)
    train_set, test_set = load_digits()
    sampler = DistributedSampler(train_set, world_size, rank, seed=SEED)
    loader = DataLoader(train_set, batch_size=max(1, options.batch_size // world_size), sampler=sampler, drop_last=True)
    model = make_model().to(device)
    if world_size > 1:
        model = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=options.epochs * len(loader))

    accuracy = 0.0
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, optimizer, schedule, device)
        accuracy = evaluate(model, test_set, device, rank, world_size)
        if rank == 0:
            print(f"epoch {epoch + 1:2d}/{options.epochs}  loss {loss:.4f}  accuracy {accuracy:.4f}", flush=True)
    if rank == 0:
        print(f"test accuracy {accuracy:.4f}", flush=True)
    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
