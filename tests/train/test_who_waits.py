"""Which module waits for which parameter: its own, those of modules that are never called, those that it borrows."""

import pytest
import torch
from torch import nn

from topout.train.who_waits import WhoWaits


def waits(model: nn.Module, x: torch.Tensor) -> dict[str, set[str]]:
    """By name, after one forward."""
    watched = WhoWaits(model, lambda: None)
    model(x)
    names = {module: name for name, module in model.named_modules()}
    called = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[module]: {called[id(p)] for p in parameters} for module, parameters in watched.finish().items()}


def test_layers_wait_for_their_own() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Sequential(nn.LayerNorm(4)))
    found = waits(model, torch.ones(2, 4))
    assert found == {"0": {"0.weight", "0.bias"}, "2.0": {"2.0.weight", "2.0.bias"}}


def test_a_module_waits_for_one_in_it_that_is_never_called() -> None:
    found = waits(nn.TransformerEncoderLayer(8, 2, batch_first=True), torch.ones(1, 3, 8))
    assert {"self_attn.in_proj_weight", "self_attn.out_proj.weight"} <= found["self_attn"]
    assert "self_attn.out_proj" not in found


def test_weights_in_a_list_are_seen() -> None:
    model = nn.LSTM(4, 4, num_layers=2)
    assert waits(model, torch.ones(3, 1, 4)) == {"": {name for name, _ in model.named_parameters()}}


class Borrowing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.unused.weight.requires_grad
        return self.second(self.first(x) @ self.second.weight.T)


def test_who_was_called_last_waits_for_what_is_borrowed() -> None:
    found = waits(Borrowing(), torch.ones(2, 4))
    assert found["first"] == {"first.weight", "first.bias", "second.weight"}
    assert found["second"] == {"second.weight", "second.bias"}
    assert found[""] == {"unused.weight", "unused.bias"}


def test_only_whole_forwards_in_training_are_watched() -> None:
    model = Borrowing()
    waited: list[bool] = []
    watched = WhoWaits(model, lambda: waited.append(True))
    model.eval()(torch.ones(2, 4))
    model.train()
    model.first(torch.ones(2, 4))
    with torch.no_grad():
        model(torch.ones(2, 4))
    # so nobody is known to be called
    assert list(watched.finish()) == [model]
    # but everybody has waited: the model, first and second in evaluation, first alone, and all three once more
    assert len(waited) == 7


def test_a_forward_that_fails_leaves_nothing_behind() -> None:
    model = Borrowing()
    watched = WhoWaits(model, lambda: None)
    with pytest.raises(RuntimeError, match="shapes"):
        model(torch.ones(2, 3))
    assert not torch._C._is_torch_function_mode_enabled()
    model(torch.ones(2, 4))
    watched.finish()
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
