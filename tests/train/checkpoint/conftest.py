"""A training of one rank, small enough to save in a moment."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from topout.train.checkpoint import Checkpoints
from topout.train.place import alone


class Training:
    """`take(n)` takes n steps; every second one is saved."""

    def __init__(self, folder: Path, model: nn.Module | None = None, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = model or nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
        self.optimizer = options.pop("optimizer", None) or torch.optim.Adam(self.model.parameters(), lr=0.1)
        state = {"model": self.model, "optimizer": self.optimizer, **options.pop("state", {})}
        self.checkpoints = Checkpoints(folder, state=state, place=alone(), **{"every": 2, **options})

    def take(self, num_steps: int) -> "Training":
        for _ in range(num_steps):
            self.optimizer.zero_grad()
            self.model(torch.randn(5, 4)).square().mean().backward()
            self.optimizer.step()
            self.checkpoints.step()
        return self

    def close(self) -> "Training":
        self.checkpoints.close()
        return self

    def values(self) -> list[torch.Tensor]:
        kept = [value for state in self.optimizer.state.values() for value in state.values()]
        return [value.detach().clone() for value in [*self.model.state_dict().values(), *kept]]


MakeTraining = Callable[..., Training]


@pytest.fixture
def training(tmp_path: Path) -> MakeTraining:
    def make(**options: Any) -> Training:
        return Training(tmp_path / "checkpoints", **options)

    return make
