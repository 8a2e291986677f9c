"""Under --ddp: what comes after the first batch, where ranks have random numbers of their own, is one model's still."""

import json
from pathlib import Path

import pytest
import torch

from tests.train.parallelise.test_single_device import AS_TWO_RANKS, run

SCRIPT = Path(__file__).with_name("later.py")

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split
torch.manual_seed(0)
DATA = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
"""
REFUSED = {
    "there is no optimizer of torch's": """
model = nn.Linear(4, 1)
for x, y in DataLoader(DATA, 8, shuffle=True):
    nn.functional.mse_loss(model(x), y).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None
""",
    "has other samples on rank 1": """
for fold in range(2):
    training, validation = random_split(DATA, [48, 16])
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model.train()
    for x, y in DataLoader(training, 8, shuffle=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    model.eval()
""",
    "random numbers drawn after the first batch": """
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(3):
    for x, y in DataLoader(DATA, 4, shuffle=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        for parameter in model.parameters():
            parameter.grad += torch.randn_like(parameter)
        optimizer.step()
    assert epoch < 2
""",
    "was dealt out to ranks, and no backward pass followed": """
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
batches = list(DataLoader(DATA, 8, shuffle=True))
torch.save(model.state_dict(), "model.pt")
""",
    "was 16 at script.py:9, and dealt out to ranks it is 8": """
loader = DataLoader(DATA, 4)
num_steps = len(loader)
model = nn.Linear(4, 1)
model.train()
for x, y in loader:
    pass
""",
    "has another seed of torch's random numbers than rank 0": """
import os
torch.manual_seed(int(os.environ["RANK"]))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in DataLoader(DATA, 8, shuffle=True):
    nn.functional.mse_loss(model(x), y).backward()
""",
    "shares a model's memory with processes": """
nn.Linear(4, 1).share_memory()
""",
    "parameters of lazy modules": """
model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model.train()
for x, y in DataLoader(DATA, 8, shuffle=True):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
""",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("later")
    for words in ([str(SCRIPT)], [*AS_TWO_RANKS, str(SCRIPT)]):
        ended = run(folder, *words)
        assert ended.returncode == 0, ended.stderr
    return {name: json.loads((folder / f"later.{name}").read_text()) for name in ("alone", "0", "1")}


def test_backward_inside_backward_averages_once(found) -> None:
    for name in ("0", "1"):
        for mine, alone in zip(found[name]["reentrant"], found["alone"]["reentrant"], strict=True):
            torch.testing.assert_close(torch.tensor(mine), torch.tensor(alone))


def test_a_mean_over_the_batches_seen_is_one_in_evaluation_too(found) -> None:
    assert [found[name]["mean"] for name in ("alone", "0", "1")] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("kind", ["second", "made", "folded"])
def test_a_model_made_later_is_the_same_on_all_ranks(found, kind) -> None:
    assert found["0"][kind] == found["1"][kind]


def test_an_optimizer_may_be_replaced_and_takes_its_hooks_with_it_once_no_rank_has_it(found) -> None:
    assert found["0"]["replaced"] == found["1"]["replaced"]
    for mine, alone in zip(found["0"]["replaced"], found["alone"]["replaced"], strict=True):
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(alone))
    assert [found[rank]["hooks while some rank has them"] for rank in ("0", "1")] == [2, 2]
    assert [found[rank]["hooks"] for rank in ("0", "1")] == [1, 1]


@pytest.mark.parametrize("kind", ["attacked", "ahead"])
def test_what_is_of_single_samples_and_what_is_read_ahead_comes_to_what_one_process_comes_to(found, kind) -> None:
    assert found["0"][kind] == found["1"][kind]
    for mine, alone in zip(found["0"][kind], found["alone"][kind], strict=True):
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(alone))


def test_an_averaged_copy_is_evaluated_with_the_statistics_of_rank_0(found) -> None:
    assert found["0"]["own statistics"] != found["1"]["own statistics"]
    assert found["0"]["averaged statistics"] == found["1"]["averaged statistics"] == found["0"]["own statistics"]


def test_evaluation_draws_the_same_on_all_ranks_each_time_anew_and_training_does_not(found) -> None:
    assert found["0"]["drawn"] == found["1"]["drawn"]
    assert len({json.dumps(one) for one in found["0"]["drawn"]}) == len(found["0"]["drawn"]) == 6
    for first, second in zip(found["0"]["drawn in training"], found["1"]["drawn in training"], strict=True):
        assert first != second


@pytest.mark.parametrize("problem", REFUSED)
def test_what_would_give_each_rank_a_model_or_data_of_its_own_is_refused(tmp_path, problem) -> None:
    (tmp_path / "script.py").write_text(HEAD + REFUSED[problem])
    ended = run(tmp_path, *AS_TWO_RANKS, "script.py")
    assert ended.returncode == 2
    assert problem in ended.stderr
    assert "script.py:" in ended.stderr and "\n  do   " in ended.stderr
    assert "Traceback" not in ended.stderr


AT_THE_END = {
    "When the script had ended rank 1 has other parameters than rank 0.": """
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in DataLoader(DATA, 8, shuffle=True):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
model.reset_parameters()
raise SystemExit(0)
""",
    "The DataLoader at script.py:10 was dealt out to ranks, and no backward pass followed.": """
model = nn.Linear(4, 1)
model.train()
num_seen = sum(len(model(x)) for x, y in DataLoader(DATA, 8, shuffle=True))
""",
    "The DataLoader at script.py:11 was dealt out to ranks, and no backward pass followed.": """
model = nn.Linear(4, 1)
parameters = list(model.parameters())
rate = 0.1
batches = iter(DataLoader(DATA, 8, shuffle=True))
for step in range(2):
    x, y = next(batches)
    loss = nn.functional.mse_loss(model(x), y)
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
        parameter.data -= rate * gradient
""",
}


@pytest.mark.parametrize("problem", AT_THE_END)
def test_what_nothing_found_before_is_found_when_the_script_has_ended(tmp_path, problem) -> None:
    (tmp_path / "script.py").write_text(HEAD + AT_THE_END[problem])
    ended = run(tmp_path, *AS_TWO_RANKS, "script.py")
    assert ended.returncode == 2
    assert problem in ended.stderr and "\n  do   " in ended.stderr
    assert "Traceback" not in ended.stderr
