"""Examples of the docs, as they stand, on two real ranks; what they leave to the reader comes before them."""

import re

import pytest

from tests.train.conftest import REPOSITORY, RunRanks

BEFORE = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
scaler = torch.amp.GradScaler("cpu")
loader = torch.optim.swa_utils.AveragedModel(model)  # anything with a state_dict
num_steps = 3
"""
AFTER = {
    "checkpoints.md": "print(checkpoints.num_steps, place.rank, place.local_world_size)\n",
    "compression.md": "ddp(torch.ones(1, 2)).sum().backward()\nprint(compressor.traffic.bytes_sent > 0, place.rank)\n",
}
SAID = {"checkpoints.md": ["3 0 2", "3 1 2"], "compression.md": ["True 0", "True 1"]}


def example(page: str) -> str:
    """The first that makes a place of its own."""
    blocks = re.findall(r"^```python\n(.*?)^```", (REPOSITORY / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)
    return next(block for block in blocks if "joined(" in block)


@pytest.mark.parametrize("page", SAID)
def test_an_example_without_a_context_runs_when_it_is_pasted(run_ranks: RunRanks, page: str) -> None:
    ranks = run_ranks(BEFORE + example(page) + AFTER[page])
    assert [ended.code for ended in ranks] == [0, 0], ranks
    assert [ended.stdout.splitlines()[-1] for ended in ranks] == SAID[page]
