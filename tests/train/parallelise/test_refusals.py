"""What --ddp cannot do safely is refused on all ranks, naming the line; scripts that join ranks are left alone."""

import json
from pathlib import Path

import pytest

from tests.train.parallelise.test_single_device import AS_TWO_RANKS, run

REFUSALS = Path(__file__).with_name("refusals.py")
LINES = REFUSALS.read_text().splitlines()


def line(text: str, occurrence: int = 0) -> str:
    return f"refusals.py:{[number for number, found in enumerate(LINES, 1) if text in found][occurrence]}"


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refusals")
    done = run(folder, *AS_TWO_RANKS, str(REFUSALS))
    return done, [json.loads((folder / f"said.{rank}").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("no loader", f"backward at {line('ones(2, 4)')} trains on data that came from no DataLoader."),
        (
            "in order",
            f"backward at {line('model(inputs).sum().backward()')} trains on a batch of the DataLoader at "
            f"{line('DataLoader(DATA, batch_size=4):')}, which is not dealt out.",
        ),
        (
            "stream",
            f"backward at {line('model(inputs).sum().backward()', 1)} trains on a batch of the DataLoader at "
            f"{line('DataLoader(Stream()')}, which is not dealt out.",
        ),
        ("counted", f"The DataLoader at {line('sum(len(')} was dealt out to ranks, and no backward pass followed."),
        (
            "one batch",
            f"backward at {line('model(inputs).sum().backward()', 2)} trains on a batch of the DataLoader at "
            f"{line('DataLoader(DATA, batch_size=5)')}, which is not dealt out.",
        ),
        ("LBFGS", f"LBFGS at {line('optimizer.step(lambda')} cannot be made data-parallel."),
        (
            "own gradients",
            f"The optimizer steps at {line('        optimizer.step()')} with gradients",
        ),
        ("DataParallel", f"{line('nn.DataParallel(')} uses nn.DataParallel, which drives several GPUs"),
    ],
)
def test_it_is_refused_on_all_ranks_naming_the_line(ended, name, problem) -> None:
    for said in ended[1]:
        assert said[name].startswith(problem), said[name]
        assert "\n  why  " in said[name] and "\n  do   " in said[name]


def test_replicas_that_differ_end_the_job_with_the_three_parts_and_no_traceback(ended) -> None:
    done, _ = ended
    assert done.returncode == 2
    assert f"At {line('model.eval()')} rank 1 has other parameters than rank 0." in done.stderr
    assert "Traceback" not in done.stderr


DISTRIBUTED = """
import torch
from torch import distributed as dist, nn
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
print("done", dist.get_world_size())
"""


def test_a_script_that_joins_the_ranks_itself_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(DISTRIBUTED)
    done = run(tmp_path, *AS_TWO_RANKS, "own.py")
    assert done.returncode == 0, done.stderr
    assert "done 2" in done.stdout
    assert "own.py:4 joins the ranks itself; --ddp leaves the script alone" in done.stdout + done.stderr
