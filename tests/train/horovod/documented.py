"""A training script as Horovod's documentation teaches it; knows nothing of topout."""

import argparse
import json

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--uneven", action="store_true", help="rank 1 has a batch more, and ranks join")
args = parser.parse_args()

hvd.init()
torch.manual_seed(42)
inputs = torch.randn(64, 10)
dataset = TensorDataset(inputs, (inputs.sum(1) > 0).long())
sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(dataset, batch_size=8, sampler=sampler)

torch.manual_seed(hvd.rank())
model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01 * hvd.size())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), compression=compression, op=hvd.Average
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)


def train(batches):
    total = 0.0
    for data, target in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / max(1, len(batches))


losses = []
for epoch in range(4):
    sampler.set_epoch(epoch)
    losses.append(hvd.allreduce(torch.tensor(train(list(loader))), name="avg_loss").item())
    scheduler.step()

last = None
if args.uneven:
    train(list(loader)[: 1 + hvd.rank()])
    last = hvd.join()
    hvd.broadcast_parameters(model.state_dict(), root_rank=last)
checksum = sum(p.double().sum().item() for p in model.parameters())
lr = optimizer.param_groups[0]["lr"]
said = {"losses": losses, "last": last, "lr": lr, "checksums": hvd.allgather_object(checksum)}
if hvd.rank() == 0:
    print(json.dumps(said))
