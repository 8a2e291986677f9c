"""A script that never asked for fused kernels trains as without them, whatever its tensors are like."""

import copy

import pytest
import torch
from torch.nn import functional

from topout.train.compute import Compute
from topout.train.fused import fuse, pays

SGD, ADAM = torch.optim.SGD, torch.optim.Adam
OPTIMIZERS = {
    "sgd": lambda parameters: SGD(parameters, lr=0.1),
    "momentum": lambda parameters: SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: ADAM(parameters, lr=0.01),
}
each_optimizer = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


def linears():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))


def convolutions():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 8, 3))


def inputs(model, seed):
    shape = (4, 3, 8, 8) if isinstance(model[0], torch.nn.Conv2d) else (5, 6)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def backward(model, optimizer, seed=0):
    optimizer.zero_grad()
    model(inputs(model, seed)).square().mean().backward()


def assert_alike(make_model, make, train):
    """The same to rounding, plainly and fused; a wrong layout is off by far more."""
    found = []
    for is_fused in (False, True):
        model = make_model()
        optimizer = make(model.parameters())
        if is_fused:
            assert fuse(optimizer)
        train(model, optimizer)
        found.append([parameter.detach().clone() for parameter in model.parameters()])
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)


@each_optimizer
def test_gradients_that_lie_otherwise_in_memory_and_come_back(make):
    def train(model, optimizer):
        for number in range(4):
            backward(model, optimizer)
            weight = model[0].weight
            # as torch.autograd.grad may leave them, and as a constant is
            weight.grad = given = weight.grad.t().contiguous().t()
            model[2].bias.grad = torch.tensor(0.5).expand(4) if number % 2 else torch.ones(4)
            optimizer.step()
            assert weight.grad is given

    assert_alike(linears, make, train)


def test_a_gradient_that_a_closure_computes_stays():
    model = linears()
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    assert fuse(optimizer)
    weight = model[0].weight
    weight.grad = torch.ones(6, 8).t()
    optimizer.step(lambda: backward(model, optimizer))
    assert not torch.equal(weight.grad, torch.ones(8, 6))


@each_optimizer
def test_a_model_laid_out_anew_midway(make):
    def train(model, optimizer):
        for number in range(6):
            if number == 3:
                model.to(memory_format=torch.channels_last)
            backward(model, optimizer, number)
            optimizer.step()

    assert_alike(convolutions, make, train)


@each_optimizer
def test_parameters_with_gaps_keep_torch_s_other_kernels(make):
    big = torch.randn(6, 20)
    parameter = torch.nn.Parameter(big[:, :10])
    optimizer = make([parameter])
    assert not fuse(optimizer)
    parameter.data = parameter.data.contiguous()
    assert fuse(optimizer)
    reference = torch.nn.Parameter(big[:, :10].clone())
    other = make([reference])
    for _ in range(4):
        # and where they get them later
        parameter.data = torch.randn(6, 20)[:, :10].copy_(parameter.data)
        parameter.grad, reference.grad = torch.ones(6, 10), torch.ones(6, 10)
        optimizer.step()
        other.step()
        torch.testing.assert_close(parameter.data.contiguous(), reference.data)
    assert optimizer.param_groups[0]["fused"] is True


@each_optimizer
def test_layers_that_are_unfrozen_midway(make):
    def train(model, optimizer):
        for number in range(6):
            model[0].requires_grad_(number >= 3)
            backward(model, optimizer, number)
            optimizer.step()

    assert_alike(linears, make, train)


def test_sparse_gradients_that_no_module_shows():
    found = []
    for is_fused in (False, True):
        torch.manual_seed(0)
        table = torch.nn.Parameter(torch.randn(10, 4))
        optimizer = SGD([table], lr=0.1, momentum=0.9)
        if is_fused:
            assert fuse(optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            functional.embedding(torch.tensor([1, 2]), table, sparse=True).sum().backward()
            optimizer.step()
        found.append(table.detach().clone())
    assert torch.equal(*found)


def test_a_sparse_gradient_of_a_single_element():
    number = torch.nn.Parameter(torch.ones(1))
    optimizer = SGD([number], lr=0.5)
    assert fuse(optimizer)
    for _ in range(2):
        number.grad = torch.ones(1).to_sparse()
        optimizer.step()
    assert number.item() == 0


def test_what_a_hook_makes_of_a_gradient_is_left_in_it():
    """Though it was given a copy, which lies as the kernels need it."""
    weight = torch.nn.Parameter(torch.ones(2, 3))
    optimizer = SGD([weight], lr=0.5)
    assert fuse(optimizer)
    optimizer.register_step_pre_hook(lambda *_: torch.nn.utils.clip_grad_value_(weight, 0.5))
    weight.grad = given = torch.ones(3, 2).t()
    optimizer.step()
    assert weight.grad is given
    assert torch.equal(given, torch.full((2, 3), 0.5))
    assert torch.equal(weight, torch.full((2, 3), 0.75))


@pytest.mark.parametrize("make", [OPTIMIZERS["momentum"], OPTIMIZERS["adam"]], ids=["momentum", "adam"])
def test_a_plain_checkpoint_is_gone_on_with_fused_and_in_this_layout(make):
    model = convolutions()
    optimizer = make(model.parameters())
    for number in range(3):
        backward(model, optimizer, number)
        optimizer.step()
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    resumed = convolutions()
    other = make(resumed.parameters())
    Compute(precision="fp32").apply(resumed, other)
    resumed.load_state_dict(kept[0])
    other.load_state_dict(kept[1])
    assert other.param_groups[0]["fused"] is True
    for number in range(3, 6):
        for one, its in ((model, optimizer), (resumed, other)):
            backward(one, its, number)
            its.step()
    torch.testing.assert_close(list(model.parameters()), list(resumed.parameters()), rtol=1e-5, atol=1e-6)


def test_a_loss_scaler_after_a_plain_checkpoint():
    model = linears()
    optimizer = ADAM(model.parameters())
    backward(model, optimizer)
    optimizer.step()
    kept = copy.deepcopy(optimizer.state_dict())
    assert fuse(optimizer)
    for foreach in (None, True):
        kept["param_groups"][0]["foreach"] = foreach
        optimizer.load_state_dict(copy.deepcopy(kept))
        scaler = torch.amp.GradScaler("cpu")
        optimizer.zero_grad()
        scaler.scale(model(inputs(model, 0)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert optimizer.param_groups[0]["foreach"] is True, "what a checkpoint asks for stays"


def test_lazy_modules_wait_for_their_parameters():
    model = torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.Linear(4, 2))
    optimizer = SGD(model.parameters(), lr=0.1)
    assert not fuse(optimizer)
    model(torch.randn(3, 6)).sum().backward()
    optimizer.step()


@each_optimizer
def test_gradients_of_a_closure_are_fitted_when_it_has_computed_them(make):
    def train(model, optimizer):
        for number in range(4):
            if number == 2:
                model.to(memory_format=torch.channels_last)

            def closure(number=number):
                backward(model, optimizer, number)
                for parameter in model.parameters():
                    # as they may come from elsewhere
                    parameter.grad = parameter.grad.contiguous()
                return torch.tensor(1.0)

            optimizer.zero_grad()
            assert optimizer.step(closure) == 1

    assert_alike(convolutions, make, train)


def test_fused_kernels_pay_for_state_or_many_tensors():
    few, many = linears(), torch.nn.Sequential(*(linears() for _ in range(3)))
    assert not pays(SGD(few.parameters(), lr=0.1))
    assert pays(SGD(few.parameters(), lr=0.1, momentum=0.9))
    assert pays(ADAM(few.parameters(), lr=0.1))
    assert pays(SGD(many.parameters(), lr=0.1))
    assert pays(SGD(linears().to("meta").parameters(), lr=0.1))
