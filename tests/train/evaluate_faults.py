"""What goes wrong on one rank of an evaluation, one case after the other, and what each rank is told."""

import json
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

from topout.train.evaluate import evaluate, per_sample
from topout.train.place import joined


def error_of(make: Callable[[], object]) -> str | None:
    try:
        make()
    except Exception as error:
        return str(error).splitlines()[0]
    return None


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    place = joined(torch.device("cpu"), local_rank=rank, local_world_size=2)

    def failing(batch):
        if 5 in batch:
            raise ValueError("bad image")

    def rows(batch):
        return {"rows": per_sample(batch)}

    own_part = [torch.tensor([10 * rank]), torch.tensor([10 * rank + 1])]
    gathered = evaluate(rows, own_part, place, own_share=True)["rows"]
    said = {
        # of 3 4, 5 6, 7 8, 9 10 the second is rank 1's
        "step": error_of(lambda: evaluate(failing, DataLoader(range(3, 11), 2), place)),
        "lengths": error_of(lambda: evaluate(rows, DataLoader(range(8 + rank), 2), place)),
        "stream": error_of(lambda: evaluate(rows, own_part, place)),
        "own share": sorted(gathered.tolist()),
    }
    sharded = fully_shard(nn.Linear(1, 1), reshard_after_forward=True)

    def forward(batch):
        sharded(torch.ones(1, 1))
        failing(batch)

    def breaking():
        yield torch.tensor([1])
        if rank == 1:
            raise OSError("disk gone")
        yield torch.tensor([2])

    parts = {"sharded none": [[2], []], "sharded step": [[2, 2, 2], [2, 5, 2]], "sharded loader": [breaking()] * 2}
    for name, given in parts.items():
        batches = given[rank] if name == "sharded loader" else [torch.tensor([value]) for value in given[rank]]
        said[name] = error_of(lambda: evaluate(forward, batches, place, model=sharded, own_share=True))  # noqa: B023
    print(json.dumps(said))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
