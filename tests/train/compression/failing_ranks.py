"""A job of rank 0 fails on its lane; rank 0 catches it and lives on, and rank 1 must hear of it all the same."""

import json
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from topout.train.compression import install, make
from topout.train.place import joined


def main():
    dist.init_process_group("gloo")
    place = joined(torch.device("cpu"), local_rank=0, local_world_size=1)
    ddp = DistributedDataParallel(nn.Linear(256, 256))
    compressor = make(sys.argv[1], place)
    install(ddp, compressor)
    ddp(torch.ones(4, 256)).sum().backward()
    if place.rank == 0:

        def fail(bucket, step):
            raise MemoryError("no room for the second bucket")

        compressor.exchange = fail
    message = None
    try:
        ddp(torch.ones(4, 256)).sum().backward()
    except RuntimeError as error:
        message = str(error)
    store = dist.distributed_c10d._get_default_store()
    if place.rank == 1:
        store.set("heard", "yes")
    else:
        # it keeps its connections open until then: it is not its end that rank 1 hears of
        store.wait(["heard"], timedelta(seconds=60))
    print(json.dumps({"message": message}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
