"""An optimizer in parts: the bits and the state of one whole step, whatever happened to parameters in between."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from topout.train.partial_step import PartialStep
from topout.train.quick_step import hasten

MAKERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2),
    "fused": lambda p: torch.optim.Adam(p, 1e-2, fused=True),
    "fused adamw": lambda p: torch.optim.AdamW(p, 1e-2, fused=True, maximize=True),
    "fused sgd": lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.01, fused=True),
    "fused momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, fused=True),
    "fused groups": lambda p: torch.optim.SGD(
        [{"params": p[::2]}, {"params": p[1::2], "lr": 0.01, "momentum": 0.5}], 0.1, momentum=0.9, fused=True
    ),
    "fused, half of it": lambda p: torch.optim.AdamW([{"params": p[:3]}, {"params": p[3:], "fused": True}], 1e-2),
}


def twice(gradients):
    """In one tensor, as a group of DDP's holds them; and each of them there."""
    flat = torch.cat([2 * gradient.flatten() for gradient in gradients if gradient is not None])
    parts = iter(flat.split([gradient.numel() for gradient in gradients if gradient is not None]))
    return flat, [None if gradient is None else next(parts).view(gradient.shape) for gradient in gradients]


def trained(make: Callable, *, in_parts: bool, between: Callable = lambda model, optimizer, step: None):
    torch.manual_seed(0)
    # of sizes that leave something over after whole vectors
    model = nn.Sequential(nn.Linear(64, 37), nn.Linear(37, 9), nn.Linear(9, 3))
    parameters = list(model.parameters())
    optimizer = make(parameters)
    if not in_parts and any(group.get("fused") for group in optimizer.param_groups):
        # torch's kernels alone do not look at how tensors lie
        hasten(optimizer)
    partial = PartialStep(optimizer)
    for step in range(6):
        between(model, optimizer, step)
        gradients = [torch.randn(p.shape, generator=torch.Generator().manual_seed(step)) for p in parameters]
        gradients[1] = None
        if in_parts:
            for part in (slice(0, 2), slice(2, 6)):
                flat, doubled = twice(gradients[part])
                partial.apply(parameters[part], doubled, partial.settings(), flat=flat, divisor=2)
                assert all(map(torch.equal, filter(torch.is_tensor, doubled), filter(torch.is_tensor, gradients[part])))
        else:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
    return parameters, optimizer.state_dict()["state"]


def nothing(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    pass


def move(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    if step == 3:
        nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(model.parameters()) * 2, model.parameters())


def load(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    if step == 3:
        optimizer.load_state_dict(optimizer.state_dict())


def schedule(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / (1 + step)
        if group.get("momentum") is not None and step == 3:
            group["momentum"], group["nesterov"] = 0.3, False


def unlike(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """State in another order of memory than its parameter, which the kernels would not see."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if step == 3 and torch.is_tensor(value) and value.dim() == 2:
                state[name] = value.t().contiguous().t()
                assert state[name].shape == parameter.shape


def regroup(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Parameters of two groups change places."""
    if step == 3 and len(optimizer.param_groups) == 2:
        first, second = (group["params"] for group in optimizer.param_groups)
        first[:], second[:] = list(second), list(first)


def forget(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    if step == 3:
        optimizer.state.clear()


@pytest.mark.parametrize("between", [nothing, move, load, schedule, unlike, regroup, forget])
@pytest.mark.parametrize("name", MAKERS)
def test_parts_have_the_bits_and_the_state_of_the_whole(name: str, between: Callable) -> None:
    whole, whole_state = trained(MAKERS[name], in_parts=False, between=between)
    found, found_state = trained(MAKERS[name], in_parts=True, between=between)
    assert all(map(torch.equal, whole, found))
    assert found_state.keys() == whole_state.keys()
    for number, entry in whole_state.items():
        assert found_state[number].keys() == entry.keys()
        assert all(torch.equal(found_state[number][key], value) for key, value in entry.items() if value is not None)


@pytest.fixture
def double_by_default():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_divisors_do_not_depend_on_torchs_defaults(double_by_default, dtype: torch.dtype) -> None:
    model = nn.Linear(4, 4, dtype=dtype)
    partial = PartialStep(torch.optim.SGD(model.parameters(), 0.5, momentum=0.5, fused=True))
    before = model.bias.detach().clone()
    for _ in range(2):
        flat, gradients = twice([torch.ones_like(parameter) for parameter in model.parameters()])
        partial.apply(list(model.parameters()), gradients, partial.settings(), flat=flat, divisor=2)
    # steps of 1 and 1.5
    torch.testing.assert_close(model.bias.detach(), before - 0.5 * 2.5)


@pytest.mark.parametrize("is_fused", [False, True])
def test_parameters_of_other_optimizers_are_left_alone(is_fused: bool) -> None:
    own, other = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizer = torch.optim.SGD(own.parameters(), 0.1, momentum=0.9, fused=is_fused)
    before = [parameter.clone() for parameter in other.parameters()]
    partial = PartialStep(optimizer)
    parameters = [*own.parameters(), *other.parameters()]
    flat, gradients = twice([torch.full_like(parameter, 1.5) for parameter in parameters])
    partial.apply(parameters, gradients, partial.settings(), flat=flat, divisor=2)
    assert all(map(torch.equal, before, other.parameters()))
    # averaged all the same: somebody else updates them
    assert all(gradient.unique().tolist() == [1.5] for gradient in gradients)
    assert len(optimizer.state_dict()["state"]) == 2


@pytest.mark.parametrize("is_fused", [False, True])
def test_gradients_are_not_kept(is_fused: bool) -> None:
    model = nn.Linear(4, 4)
    partial = PartialStep(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, fused=is_fused))
    for _ in range(3):
        gradients = [torch.ones_like(parameter) for parameter in model.parameters()]
        places = torch.utils.weak.TensorWeakRef(gradients[0])
        partial.apply(list(model.parameters()), gradients, partial.settings())
        del gradients
        assert places() is None


def test_fused_kernels_are_called_without_torchs_walk_from_the_second_step_on(monkeypatch) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    walks = []
    walk = torch.optim.AdamW._init_group
    monkeypatch.setattr(torch.optim.AdamW, "_init_group", lambda *given: walks.append(1) or walk(*given))
    partial = PartialStep(optimizer)
    versions = [parameter._version for parameter in model.parameters()]
    for _ in range(5):
        gradients = [torch.ones_like(parameter) for parameter in model.parameters()]
        partial.apply(list(model.parameters()), gradients, partial.settings())
        # who has computed with a parameter before hears of its change
        before, versions = versions, [parameter._version for parameter in model.parameters()]
        assert all(now > then for then, now in zip(before, versions, strict=True))
    assert len(walks) == 1
