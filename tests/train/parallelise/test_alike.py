"""Under --ddp: what chance, a length or a process of the script's could make other on each rank, in one script."""

import json
import os
import subprocess
import sys

import pytest

from tests.train.parallelise.test_single_device import AS_TWO_RANKS, run

SCRIPT = """
import json, multiprocessing, os, random
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

RANK = os.environ["RANK"]
said = {"words": list({f"word {number}" for number in range(50)})}
said["unseeded"] = [np.random.default_rng().random() for _ in range(2)]
data = torch.randn(15, 2)

class Noisy(Dataset):
    def __len__(self):
        return 15
    def __getitem__(self, number):
        return data[number] + random.random() + float(np.random.rand())

def train(model, loader):
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for batch in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

def in_child():
    model = nn.Linear(1, 1)
    model(torch.ones(1, 1)).sum().backward()
    torch.optim.SGD(model.parameters(), 0.01).step()

model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
validation = DataLoader(Noisy(), 4, shuffle=True)
num_told = len(validation)
said["drawn"] = []
for epoch in range(2):
    # shares of 8 and 7 samples: one rank draws more
    train(model, DataLoader(Noisy(), 4, shuffle=True))
    with open("model.pt", "wb") as file:
        torch.save({"rank": RANK, "model": model.state_dict()}, file)
    said["saved by"] = torch.load("model.pt")["rank"]
    with open("own." + RANK, "wb") as file:
        torch.save(RANK, file)
    said["own"] = torch.load("own." + RANK)
    model.eval()
    with torch.no_grad():
        said["drawn"] += [batch.tolist() for batch in validation]
    said["drawn"] += [random.random(), float(np.random.rand())]
child = multiprocessing.get_context("fork").Process(target=in_child)
child.start()
child.join()
with open("alike." + RANK, "w") as file:
    json.dump(said, file)
# the last word: this table was shuffled by what nobody shares
order = torch.randperm(15, generator=torch.Generator().manual_seed(int(RANK)))
train(model, DataLoader(TensorDataset(data[order]), 4, shuffle=True))
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alike")
    (folder / "train.py").write_text(SCRIPT)
    done = run(folder, *AS_TWO_RANKS, "train.py")
    return done, [json.loads((folder / f"alike.{rank}").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", ["words", "unseeded", "drawn", "saved by"])
def test_it_is_the_same_on_all_ranks(ended, name) -> None:
    _, (first, second) = ended
    assert first[name] == second[name]


def test_sets_have_the_order_that_launchers_of_other_hosts_would_give_them(ended) -> None:
    # a rank that its launcher forked would have the launcher's, which is another one on each host
    code = "import json; print(json.dumps(list({f'word {number}' for number in range(50)})))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": "0"}, capture_output=True, check=True
    )
    assert ended[1][0]["words"] == json.loads(done.stdout)


def test_generators_without_a_seed_differ_from_each_other(ended) -> None:
    assert len(set(ended[1][0]["unseeded"])) == 2


def test_an_open_file_is_written_by_rank_0_and_one_of_each_rank_by_each(ended) -> None:
    assert [(said["saved by"], said["own"]) for said in ended[1]] == [("0", "0"), ("0", "1")]


def test_tables_with_other_rows_are_refused(ended) -> None:
    done, _ = ended
    assert done.returncode == 2
    assert "has other samples on rank 1" in done.stderr


def test_a_length_that_evaluation_does_not_have_and_a_training_child_are_told(ended) -> None:
    done, _ = ended
    line = 1 + SCRIPT.splitlines().index("num_told = len(validation)")
    assert f"was 2 at train.py:{line}, its steps if dealt out to ranks; evaluation goes through all 4" in done.stderr
    assert "steps in a process that the script started" in done.stderr
