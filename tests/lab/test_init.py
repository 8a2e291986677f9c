"""`topout.init()` in tasks that srun or mpirun started as plain Python: they find each other and train one model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.lab import ways
from tests.lab.cluster import Slurm

pytestmark = pytest.mark.lab

TRAIN = """
import hashlib, json, os, socket, sys
import torch
from torch import nn
import topout

ctx = topout.init()
torch.manual_seed(ctx.rank)
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = torch.utils.data.TensorDataset(torch.arange(48.0).reshape(6, 8), torch.arange(6) % 4)
model, optimizer, loader = ctx.wrap(model, optimizer, torch.utils.data.DataLoader(data, batch_size=1))
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x / 48), y).backward()
    optimizer.step()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
said = {"host": socket.gethostname(), "world_size": ctx.world_size, "digest": digest, "at": os.environ["MASTER_ADDR"]}
open(f"{sys.argv[1]}/{ctx.rank}.json", "w").write(json.dumps(said))
"""
PLAIN = [way for way in ways.WAYS if way != "once in an allocation"]


def start(way: str, slurm: Slurm, folder: Path) -> "subprocess.CompletedProcess[str]":
    (folder / "train.py").write_text(TRAIN)
    return ways.despite_mpich(lambda: start_once(way, slurm, folder))


def start_once(way: str, slurm: Slurm, folder: Path) -> "subprocess.CompletedProcess[str]":
    words = [*ways.WAYS[way], sys.executable, folder / "train.py", folder]
    where = slurm if way in ways.SLURM else slurm.nodes[0]
    process = where.popen(words, cwd=folder, env={"PYTHONPATH": str(REPOSITORY)})
    try:
        stdout, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
    return subprocess.CompletedProcess(words, process.returncode, stdout, stderr)


@pytest.mark.parametrize("way", PLAIN)
def test_plain_tasks_of_two_nodes_train_one_model(slurm: Slurm, tmp_path: Path, way: str) -> None:
    ended = start(way, slurm, tmp_path)
    assert ended.returncode == 0, ended
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert [first["host"], second["host"]] == ["n1", "n2"]
    assert first["world_size"] == second["world_size"] == 2
    assert first["digest"] == second["digest"]
    # at the job's own address, not at all of the host's
    assert first["at"] == second["at"] == slurm.nodes[0].address


def test_one_process_in_a_job_of_two_tasks_is_an_error_and_not_a_world_of_one(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import topout\ntopout.init()\n")
    words = ["salloc", "-Q", "-N2", "-n2", *slurm.nodes[0].prefix, sys.executable, tmp_path / "train.py"]
    process = slurm.popen(words, cwd=tmp_path, env={"PYTHONPATH": str(REPOSITORY)})
    _, stderr = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "This job has 2 tasks, and the world would be 1 rank." in stderr
