"""Run on two ranks: whose random numbers a rank goes on with after a resume in another mesh. Prints one JSON object.

argv: a checkpoint of one process, and a folder for others.
"""

import json
import sys

import torch
from torch import nn

import topout
from topout.train.mesh import hybrid

torch.set_num_threads(1)
context = topout.init()
of_one_process, folder = sys.argv[1:]


def made(mesh):
    torch.manual_seed(7)
    layout = {"0": "columns", "1": "rows"}
    return hybrid(
        context.place, lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.functional.mse_loss,
        lambda parameters: torch.optim.SGD(parameters, 0.1), mesh={"mesh": mesh, "layout": layout},
    )  # fmt: skip


def saved(name, mesh):
    trainer = made(mesh)
    trainer.step(torch.ones(2, 4), torch.ones(2, 4))
    trainer.save(f"{folder}/{name}")
    trainer.close()
    return state()


def restored(path, mesh):
    trainer = made(mesh)
    torch.manual_seed(1000 + context.place.rank)
    assert trainer.restore(path) == 1
    trainer.close()
    return state()


def state():
    return torch.get_rng_state().sum().item(), torch.initial_seed()


rows, peers = saved("rows", {"dp": 2}), saved("peers", {"tp": 2})
found = {
    "rows": rows,
    "peers": peers,
    "rows again": restored(f"{folder}/rows", {"dp": 2})[:1],
    "rows as peers": restored(f"{folder}/rows", {"tp": 2}),
    "rows as peers again": restored(f"{folder}/rows", {"tp": 2}),
    "peers as rows": restored(f"{folder}/peers", {"dp": 2}),
    "one as peers": restored(of_one_process, {"tp": 2}),
    "one as rows": restored(of_one_process, {"dp": 2}),
}
print(json.dumps(found), flush=True)
context.close()
