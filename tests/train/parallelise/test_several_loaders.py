"""Under --ddp: loaders over equally long data have orders of their own, the same on all ranks, and new ones if anew."""

import json

import pytest

from tests.train.parallelise.test_single_device import AS_TWO_RANKS, run

SCRIPT = """
import json, os
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

NUM = 16

class Noisy(Dataset):
    def __len__(self):
        return NUM
    def __getitem__(self, number):
        return number, torch.randn(3)

torch.manual_seed(0)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
said = {}

def train(name, *loaders):
    for batches in zip(*loaders):
        optimizer.zero_grad()
        sum(model(noise).sum() for _, noise in batches).backward()
        optimizer.step()
        said.setdefault(name, []).append([numbers.tolist() for numbers, _ in batches])
        said.setdefault(name + " noise", []).append([noise.flatten().tolist() for _, noise in batches])

def shuffled(**options):
    return DataLoader(Noisy(), 4, shuffle=True, **options)

pair = shuffled(), shuffled()
for epoch in range(2):
    train("pair", *pair)
train("views", *(DataLoader(Noisy(), 4, shuffle=True, num_workers=1) for _ in range(2)))
train("in step", *(shuffled(generator=torch.Generator().manual_seed(3)) for _ in range(2)))
for epoch in range(3):
    train(f"anew {epoch}", shuffled())
    train(f"some {epoch}", DataLoader(Noisy(), 4, sampler=RandomSampler(Noisy(), num_samples=8)))
with open("several." + os.environ["RANK"], "w") as file:
    json.dump(said, file)
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several")
    (folder / "train.py").write_text(SCRIPT)
    ended = run(folder, *AS_TWO_RANKS, "train.py")
    assert ended.returncode == 0, ended.stderr
    return [json.loads((folder / f"several.{rank}").read_text()) for rank in range(2)]


def test_samples_are_not_paired_with_themselves(found) -> None:
    for said in found:
        assert all(mine != other for mine, other in said["pair"])


def test_each_loader_deals_out_every_sample_once(found) -> None:
    for place in range(2):
        seen = [number for said in found for batches in said["pair"] for number in batches[place]]
        assert sorted(seen) == sorted([*range(16)] * 2)


def test_workers_of_two_loaders_augment_differently(found) -> None:
    for said in found:
        assert all(mine != other for mine, other in said["views noise"])


def test_generators_of_one_seed_keep_loaders_in_step(found) -> None:
    for said in found:
        assert all(mine == other for mine, other in said["in step"])


@pytest.mark.parametrize("kind", ["anew", "some"])
def test_a_loader_made_anew_has_a_new_order(found, kind) -> None:
    for said in found:
        assert len({json.dumps(said[f"{kind} {epoch}"]) for epoch in range(3)}) == 3
