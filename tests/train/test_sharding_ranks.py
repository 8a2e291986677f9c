"""Real ranks: all take equally many batches, and what one finds wrong ends them all."""

from tests.train.conftest import RunRanks

SCRIPT_BEGINS = """
import json, os, sys
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from topout.schema.errors import TopoutError
from topout.train.place import joined
from topout.train.sharding import shard

dist.init_process_group("gloo")
rank = dist.get_rank()
place = joined(torch.device("cpu"), local_rank=rank, local_world_size=dist.get_world_size())

def error_of(make):
    try:
        make()
    except Exception as error:
        return str(error).splitlines()[0]

class Own:
    def __init__(self, draw):
        self.draw = draw
    def __len__(self):
        return 8
    def __iter__(self):
        return iter(self.draw())

said = {}
"""

SCRIPT_ENDS = """
print(json.dumps(said))
dist.destroy_process_group()
"""

TRAINS = """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.BatchNorm1d(4)))
data = torch.arange(29, dtype=torch.float32).reshape(29, 1)
loader = shard(DataLoader(data, batch_size=4, shuffle=True), place, seed=1)
said["sizes"], said["seen"] = [], []
for epoch in range(2):
    for batch in loader:
        said["sizes"].append(len(batch))
        said["seen"] += batch.flatten().tolist()
        model(batch).sum().backward()
said["state"] = loader.state_dict()
"""

FAILS = """
def unseeded():
    return sorted(range(8), key=lambda _: os.urandom(8))

def failing():
    if rank == 1:
        raise OSError("no such folder")
    return list(range(8))

def sharded(**options):
    return shard(DataLoader(range(8), 2, **options), place)

said["lengths"] = error_of(lambda: shard(DataLoader(range(8 + 2 * rank), 2), place))
said["seeds"] = error_of(lambda: shard(DataLoader(range(8), 2), place, seed=rank))
said["unseeded"] = error_of(lambda: iter(sharded(sampler=Own(unseeded))))
said["failing"] = error_of(lambda: iter(sharded(sampler=Own(failing))))
said["agreeing"] = error_of(lambda: list(sharded(sampler=Own(lambda: torch.randperm(8).tolist()))))
"""


def test_uneven_data_trains_with_equally_many_batches_on_three_ranks(run_ranks: RunRanks) -> None:
    ended = run_ranks(SCRIPT_BEGINS + TRAINS + SCRIPT_ENDS, num_ranks=3)
    assert [rank.code for rank in ended] == [0, 0, 0], ended[0].stderr
    # 29 samples: 12, then the 17 that are left; 5 are fewer than two a rank, so the last two share: 6 and 11
    assert [rank.said["sizes"] for rank in ended] == [[4, 2, 4] * 2, [4, 2, 4] * 2, [4, 2, 3] * 2]
    seen = sorted(sample for rank in ended for sample in rank.said["seen"])
    assert seen == sorted(2 * list(range(29)))
    assert all(rank.said["state"] == ended[0].said["state"] for rank in ended)


def test_ranks_that_do_not_fit_together_all_end_with_an_error(run_ranks: RunRanks) -> None:
    first, second = run_ranks(SCRIPT_BEGINS + FAILS + SCRIPT_ENDS)
    assert (first.code, second.code) == (0, 0), first.stderr + second.stderr
    assert first.said["lengths"] == second.said["lengths"] == "Rank 1 has samples 10 where rank 0 has 8."
    assert first.said["seeds"] == second.said["seeds"] == "Rank 1 has seed 1 where rank 0 has 0."
    assert first.said["unseeded"] == second.said["unseeded"]
    assert first.said["unseeded"].startswith("Rank 1 has another order than rank 0.")
    assert first.said["failing"] == "Rank 1 failed: OSError: no such folder"
    assert second.said["failing"] == "no such folder"
    assert first.said["agreeing"] is second.said["agreeing"] is None
