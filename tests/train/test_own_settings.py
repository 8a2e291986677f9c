"""What leaves a fused optimizer is as the script made it: copies, pickles, state dicts."""

import copy
import io
import pickle
import weakref

import pytest
import torch

from topout.train.fused import fuse

OPTIMIZERS = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, 0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.01, foreach=False),
    "asked for": lambda parameters: torch.optim.SGD(parameters, 0.1, fused=True),
}
each_optimizer = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


def saved_and_loaded(optimizer):
    file = io.BytesIO()
    torch.save(optimizer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda optimizer: pickle.loads(pickle.dumps(optimizer)),
    "torch.save": saved_and_loaded,
}
each_copy = pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)


def started(make):
    """An optimizer that was fused and has made a step, and its settings before."""
    torch.manual_seed(0)
    optimizer = make(list(torch.nn.Linear(6, 8).parameters()))
    own = optimizer.state_dict()["param_groups"]
    assert fuse(optimizer)
    give_gradients(optimizer)
    optimizer.step()
    return optimizer, own


def give_gradients(optimizer):
    """That lie in memory as fused kernels cannot take them."""
    generator = torch.Generator().manual_seed(1)
    for parameter in optimizer.param_groups[0]["params"]:
        values = torch.randn(parameter.shape, generator=generator)
        parameter.grad = values.t().contiguous().t() if values.dim() == 2 else values


def values(optimizer):
    state = [value for kept in optimizer.state.values() for value in kept.values() if torch.is_tensor(value)]
    return [*optimizer.param_groups[0]["params"], *state]


@each_copy
@each_optimizer
def test_a_copy_has_the_script_s_settings(make, copied):
    optimizer, own = started(make)
    other = copied(optimizer)
    assert other.state_dict()["param_groups"] == own
    assert other.defaults == make([torch.nn.Parameter(torch.ones(1))]).defaults
    assert other.param_groups[0]["fused"] == own[0]["fused"]
    assert optimizer.param_groups[0]["fused"]


@each_copy
@pytest.mark.parametrize("name", ["momentum", "adam", "adamw"])
def test_a_copy_goes_on_with_the_bits_of_an_optimizer_that_was_never_fused(name, copied):
    optimizer, _ = started(OPTIMIZERS[name])
    other = copied(optimizer)
    plain = OPTIMIZERS[name]([torch.nn.Parameter(p.detach().clone()) for p in optimizer.param_groups[0]["params"]])
    plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert not plain.param_groups[0]["fused"]
    for one in (plain, other):
        for _ in range(3):
            give_gradients(one)
            one.step()
    assert all(map(torch.equal, values(plain), values(other)))


@each_copy
def test_a_copy_takes_sparse_gradients(copied):
    """Of which fused kernels know nothing."""
    optimizer, _ = started(OPTIMIZERS["momentum"])
    other = copied(optimizer)
    weight = other.param_groups[0]["params"][0]
    before = weight.detach().clone()
    weight.grad = torch.full((8, 6), 100.0).to_sparse()
    other.step()
    assert (weight < before).all()


@each_optimizer
def test_a_state_dict_is_the_script_s_and_fuses_again_when_it_is_loaded(make):
    optimizer, own = started(make)
    for _ in range(2):
        assert optimizer.state_dict()["param_groups"] == own
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        assert optimizer.param_groups[0]["fused"]


def test_groups_that_come_later_have_the_script_s_defaults_in_copies():
    optimizer, _ = started(OPTIMIZERS["momentum"])
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
    assert optimizer.param_groups[1]["fused"]
    assert [group["fused"] for group in copy.deepcopy(optimizer).param_groups] == [None, None]


def test_what_a_script_switches_off_later_stays_off_in_copies():
    optimizer, _ = started(OPTIMIZERS["momentum"])
    optimizer.param_groups[0]["fused"] = False
    assert copy.deepcopy(optimizer).param_groups[0]["fused"] is False
    assert optimizer.state_dict()["param_groups"][0]["fused"] is False


def test_a_fused_optimizer_is_let_go_without_the_garbage_collector():
    optimizer, _ = started(OPTIMIZERS["momentum"])
    reference = weakref.ref(optimizer)
    del optimizer
    assert reference() is None
