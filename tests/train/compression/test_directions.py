"""Where PowerSGD begins: by literals of shape, without ranks."""

import torch
from torch import nn

from topout.train.compression.powersgd import Matrix, PowerSgd
from topout.train.place import Place


def first_direction(rank: int, name: str) -> torch.Tensor:
    model = nn.ModuleDict({"first": nn.Linear(6, 8, bias=False), "second": nn.Linear(6, 8, bias=False)})
    compressor = PowerSgd(Place(rank=rank, device=torch.device("cpu")), rank=2)
    compressor.learn(model)
    return compressor._direction(Matrix(name, torch.zeros(8, 6), 2), torch.device("cpu"))


def test_all_ranks_begin_with_the_same_directions_and_each_parameter_with_its_own():
    """Other ones on each rank would average away in the first step."""
    direction = first_direction(0, "first.weight")
    assert direction.shape == (6, 2)
    assert torch.equal(first_direction(1, "first.weight"), direction)
    assert not torch.equal(first_direction(0, "second.weight"), direction)
