"""What goes wrong on one rank of an evaluation, one case after the other, and what each rank is told."""

import json
from collections.abc import Callable

import torch
import torch.distributed as dist
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
    dist.init_process_group("gloo")
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
    print(json.dumps(said))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
