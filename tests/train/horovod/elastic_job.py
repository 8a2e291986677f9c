"""A job as Horovod's page on elastic teaches it, in a world of fixed size; prints what came out as one line of JSON."""

import json

import horovod.torch as hvd
import torch
from torch import nn

hvd.init()
rank = hvd.rank()
torch.manual_seed(rank)
model = nn.Linear(2, 1)
inner = torch.optim.SGD(model.parameters(), lr=0.1 * (rank + 1), momentum=0.9)
scheduler = torch.optim.lr_scheduler.ExponentialLR(inner, 0.5)
optimizer = hvd.DistributedOptimizer(inner, named_parameters=model.named_parameters())
sampler = hvd.elastic.ElasticSampler(range(12), shuffle=False)
state = hvd.elastic.TorchState(
    model=model, optimizer=optimizer, sampler=sampler, batch=0, epoch=3 * rank, best=None, seen=[]
)
state.register_reset_callbacks([lambda: found.update(reset=state.epoch)])
# no part of the state, and nothing that could travel
state.loader = object()
found = {}


def weights():
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).tolist()


def momentum():
    return optimizer.state[model.weight]["momentum_buffer"].flatten().tolist()


def step():
    optimizer.zero_grad()
    model(torch.full((2, 2), rank + 1.0)).sum().backward()
    optimizer.step()


@hvd.elastic.run
def train(state, num_steps):
    found["at first"] = [weights(), state.epoch, optimizer.param_groups[0]["lr"]]
    for state.batch in range(num_steps):
        found["indices"] = [*found.get("indices", []), sampler.get_indices(state.batch, 2)]
        step()
        sampler.record_batch(state.batch, 2)
        state.seen.append(state.batch)
    state.best = 0.5
    state.commit()
    committed = [weights(), momentum(), sorted(sampler.processed_indices), state.seen.copy(), state.best]
    for name in ("restored", "again"):
        step()
        sampler.record_batch(2, 2)
        state.seen.append(9)
        state.best = 0.1
        state.restore()
        came = [weights(), momentum(), sorted(sampler.processed_indices), state.seen.copy(), state.best]
        found[name] = came == committed
    scheduler.step()
    found["scheduled"] = optimizer.param_groups[0]["lr"]
    with torch.no_grad():
        model.weight.add_(rank)
    state.epoch += 1 + rank
    state.sync()
    found["synced"] = [weights(), momentum(), state.epoch, state.batch, state.best, list(sampler), len(sampler)]
    state.on_reset()
    return "done"


found["returned"] = train(state, 2)
print(json.dumps(found))
