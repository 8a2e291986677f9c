"""One epoch through `topout.Loader` on every rank: prints the labels this rank got, and where it ran.

Usage: loader_hosts.py PACK
"""

import socket
import sys

import torch.distributed as dist

import topout

dist.init_process_group("gloo")
with topout.Loader(sys.argv[1], 4, seed=3, last="exact") as loader:
    numbers = [number for batch in loader for number in batch["number"].tolist()]
print(f"rank {dist.get_rank()} on {socket.gethostname()}: GOT {numbers}")
dist.destroy_process_group()
