"""Evaluates on as many ranks as it is started with, and prints figures exactly: floats in hexadecimal."""

import json
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, TensorDataset

from topout.train.evaluate import evaluate, mean, per_sample
from topout.train.place import joined
from topout.train.sharding import shard


class Augmented(Dataset):
    """Test-time augmentation, drawn in workers."""

    def __len__(self) -> int:
        return 17

    def __getitem__(self, number: int) -> torch.Tensor:
        return number + torch.rand(())


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def figures_of(result: dict) -> dict:
    def exact(value):
        if isinstance(value, torch.Tensor):
            return [exact(part) for part in value.flatten().tolist()]
        return value.hex() if isinstance(value, float) else value

    return {name: exact(value) for name, value in result.items()}


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    place = joined(torch.device("cpu"), local_rank=rank, local_world_size=dist.get_world_size())
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(17, 3, generator=generator), torch.randint(0, 4, (17,), generator=generator))
    model = DistributedDataParallel(make_model())
    # statistics drift apart between ranks, as they do in training; rank 0's count
    model.module[1].running_mean += 0.1 * rank
    own = model.module[1].running_mean.clone()

    def step(batch):
        inputs, labels = batch
        outputs = model(inputs)
        pairs = labels * 4 + outputs.argmax(1)
        return {
            "loss": mean(F.cross_entropy(outputs, labels), len(labels)),
            "accuracy": mean(outputs.argmax(1) == labels),
            "losses": mean(F.cross_entropy(outputs, labels, reduction="none")),
            "sum": F.cross_entropy(outputs, labels, reduction="sum"),
            "total": len(labels),
            "confusion": torch.bincount(pairs, minlength=16).reshape(4, 4),
            "probabilities": outputs.softmax(1).sum(0),
            "scores": per_sample(outputs),
        }

    loader = DataLoader(data, batch_size=4, num_workers=0)
    results = {"plain": evaluate(step, loader, place, model=model)}
    results["sharded before"] = evaluate(step, shard(loader, place), place, model=model)
    results["fewer batches than ranks"] = evaluate(step, DataLoader(data, batch_size=9), place, model=model)
    results["iterable"] = evaluate(step, list(loader), place, model=model)
    results["workers"] = evaluate(
        lambda batch: {"rows": per_sample(batch)}, DataLoader(Augmented(), 4, num_workers=1), place
    )
    said = {"figures": {name: figures_of(result) for name, result in results.items()}}
    said["is as before"] = bool(torch.equal(model.module[1].running_mean, own)) and model.training
    if dist.get_world_size() == 1:
        said["equal to a plain loop"] = results["plain"]["loss"] == plain_loop(model, loader)
    # gathers its parameters in every forward: all ranks must take part in each
    sharded = fully_shard(make_model(), reshard_after_forward=True)

    def sharded_step(batch):
        return {"sum": mean(sharded(batch[0]).sum(), 1)}

    result = evaluate(sharded_step, loader, place, model=sharded)
    said["figures"]["fully sharded"] = figures_of(result)
    three, two = list(DataLoader(data, batch_size=6)), list(DataLoader(data, batch_size=9))
    own = three[rank :: dist.get_world_size()]
    for name, given in {"three": three, "two": two, "own": own}.items():
        result = evaluate(sharded_step, iter(given), place, model=sharded, own_share=name == "own")
        said["figures"][f"fully sharded, {name}"] = figures_of(result)
    print(json.dumps(said))
    dist.destroy_process_group()


def plain_loop(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for inputs, labels in loader:
            total += F.cross_entropy(model(inputs), labels).item() * len(labels)
            count += len(labels)
    return total / count


if __name__ == "__main__":
    main()
