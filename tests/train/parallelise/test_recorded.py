"""Where the time of ranks goes that `--ddp`, Horovod's face or DDP joined: waiting for gradients is communication."""

import json

import pytest

from topout.analyze.broadcasts import is_inside
from topout.schema.event import Kind
from topout.schema.run_folder import RunFolder
from topout.trace.readers.topout import read_rank

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
{before}
torch.set_num_threads(1)
torch.manual_seed(0)
layers = [nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)]
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
{after}
dataset = TensorDataset(torch.randn(2048, 256), torch.randint(0, 10, (2048,)))
for inputs, labels in DataLoader(dataset, batch_size=32, shuffle=True):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
"""
WAYS = {
    "ddp": ("", ""),
    "horovod": (
        "import horovod.torch as hvd; hvd.init()",
        "optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())",
    ),
    "wrap": ("import topout; ctx = topout.init()", "model, optimizer = ctx.wrap(model, optimizer)"),
}


@pytest.fixture(scope="module")
def known():
    """Recordings by way: each is made once."""
    return {}


@pytest.fixture
def recorded(run_topout, tmp_path, known):
    def record(way):
        if way in known:
            return known[way]
        before, after = WAYS[way]
        script = tmp_path / "train.py"
        script.write_text(SCRIPT.format(before=before, after=after))
        ran = run_topout(["run", "-n", "2", *(["--ddp"] if way == "ddp" else []), script])
        assert ran.code == 0, ran.stderr
        (folder,) = (tmp_path / "topout-runs").iterdir()
        known[way] = RunFolder(folder), json.loads((folder / "analysis.json").read_text())["measures"]
        return known[way]

    return record


@pytest.mark.alone
@pytest.mark.parametrize("way", WAYS)
def test_waiting_for_gradients_is_communication_and_not_the_scripts_own_code(recorded, way) -> None:
    _, measures = recorded(way)
    shares = measures["shares"]
    assert shares["other"] < 0.15
    assert shares["wait"] + shares["transfer"] > shares["other"]


def test_whatever_ranks_exchange_for_a_pass_lies_inside_its_backward(recorded) -> None:
    folder, _ = recorded("ddp")
    table = read_rank(folder, 0)
    called = table.rows(Kind.COLLECTIVE)
    # the groups of gradients are agreed on after the first pass: with a row only for autograd's part, outside of it
    in_training = called[table.start_ns[called] >= table.start_ns[table.rows(Kind.BACKWARD)[0]]]
    assert "all_gather" in {table.name(int(row)).partition("@")[0] for row in in_training}
    assert is_inside(table, table.start_ns[in_training], table.rows(Kind.BACKWARD)).all()
