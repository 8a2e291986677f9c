"""Ranks that hold parts of a model say so: FSDP in its kinds, and tensors that a mesh cuts."""

import json

SCRIPT = """
import json, sys
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from topout.record.torch_taps.sizes import _is_sharded

torch.set_num_threads(1)
distributed.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
found = {"plain": _is_sharded(nn.Linear(8, 8).parameters())}
for name, placement in (("cut", Shard(0)), ("copied", Replicate())):
    found[name] = _is_sharded([distribute_tensor(torch.ones(8, 8), mesh, [placement])])
for strategy in ("FULL_SHARD", "NO_SHARD"):
    for keeps in (False, True):
        model = FullyShardedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), use_orig_params=keeps,
                                         sharding_strategy=ShardingStrategy[strategy], device_id=torch.device("cpu"))
        found[f"{strategy} {keeps}"] = _is_sharded(model.parameters())
if distributed.get_rank() == 0:
    json.dump(found, open(sys.argv[1], "w"))
model = nn.Linear(8, 8)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(12):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
distributed.destroy_process_group()
"""


def test_a_rank_that_holds_a_part_says_so(run_topout, tmp_path):
    script = tmp_path / "sharded.py"
    script.write_text(SCRIPT)
    done = run_topout(["run", "-n", 2, "--runs", tmp_path / "runs", script, tmp_path / "found.json"])
    assert done.code == 0, done.stderr
    assert json.loads((tmp_path / "found.json").read_text()) == {
        "plain": False,
        "cut": True,
        "copied": False,
        "FULL_SHARD False": True,
        "FULL_SHARD True": True,
        "NO_SHARD False": False,
        "NO_SHARD True": False,
    }
    (folder,) = (tmp_path / "runs").iterdir()
    memory = json.loads((folder / "analysis.json").read_text())["measures"]["memory"]
    assert memory["is_sharded"] is True
    # half of 72 numbers of four bytes, rounded up to rows
    assert memory["parameter_bytes"] == 144
