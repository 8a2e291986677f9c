"""Backward computes with oneDNN or without it: as told, or as timed; forward and the script's own setting stay."""

from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional

from topout.train import backward_kernels
from topout.train.backward_kernels import BackwardKernels
from topout.train.compute import Compute

BATCHES_OF_TRIAL = 10


class Seen(torch.autograd.Function):
    """Notes in `during` whether oneDNN was on, forward and backward."""

    during: ClassVar[list[tuple[str, bool]]] = []

    @staticmethod
    def forward(ctx, x):
        Seen.during.append(("forward", torch._C._get_mkldnn_enabled()))
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        Seen.during.append(("backward", torch._C._get_mkldnn_enabled()))
        return gradient


def trained(num_steps: int, accumulate: int = 1, **switches):
    Seen.during = []
    torch.manual_seed(0)
    model = nn.Conv2d(3, 8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compute = Compute(precision=switches.pop("precision", "fp32"), accumulate=accumulate, **switches)
    compute.apply(model, optimizer)
    stepper = compute.stepper(model, optimizer)
    for _ in range(num_steps * accumulate):
        with stepper.forward():
            loss = functional.mse_loss(Seen.apply(model(torch.ones(2, 3, 8, 8))), torch.zeros(2, 8, 6, 6))
        stepper.backward(loss)
    assert torch._C._get_mkldnn_enabled()
    return model


def backwards() -> list[bool]:
    return [is_on for phase, is_on in Seen.during if phase == "backward"]


@pytest.mark.parametrize("choice", [True, False])
def test_only_backward_is_without_it(choice: bool) -> None:
    trained(3, onednn_backward=choice)
    assert Seen.during == [("forward", True), ("backward", choice)] * 3


def test_the_gradients_are_the_same_but_for_rounding() -> None:
    torch.testing.assert_close(trained(1, onednn_backward=False).weight, trained(1).weight)


def test_half_precision_stays_with_it() -> None:
    trained(1, onednn_backward=False, precision="bf16")
    assert backwards() == [True]


@pytest.mark.parametrize(("slow", "wins"), [(True, False), (False, True)])
def test_auto_takes_turns_and_then_the_faster_one(monkeypatch, capsys, slow: bool, wins: bool) -> None:
    """`slow`: the setting of oneDNN in which backward takes three times as long."""
    clock = {"now": 0.0}
    monkeypatch.setattr(backward_kernels.time, "perf_counter", lambda: clock["now"])
    kernels = BackwardKernels("auto")
    used = []
    for step in range(5, 5 + BATCHES_OF_TRIAL + 3):
        with kernels.around(step):
            used.append(torch._C._get_mkldnn_enabled())
            clock["now"] += 3.0 if used[-1] is slow else 1.0
    assert used == [True, False] * (BATCHES_OF_TRIAL // 2) + [wins] * 3
    assert ("without oneDNN, 3.0 times as fast" in capsys.readouterr().err) is not wins


def test_a_recording_is_told_what_auto_chose(monkeypatch) -> None:
    told = {}

    class Recorder:
        fact = staticmethod(told.update)

    monkeypatch.setattr(backward_kernels, "current", Recorder)
    kernels = BackwardKernels("auto")
    for step in range(BATCHES_OF_TRIAL):
        with kernels.around(step):
            pass
    assert told == {}
    with kernels.around(BATCHES_OF_TRIAL):
        pass
    assert told == {"backward_uses_onednn": kernels.uses_onednn}


def test_all_batches_of_a_step_are_computed_alike() -> None:
    trained(2, accumulate=3, onednn_backward="auto")
    assert backwards() == [True] * 3 + [False] * 3


def test_a_script_that_turned_it_off_keeps_it_off() -> None:
    torch._C._set_mkldnn_enabled(False)
    try:
        with backward_kernels.onednn(True):
            assert not torch._C._get_mkldnn_enabled()
    finally:
        torch._C._set_mkldnn_enabled(True)


def test_it_is_given_back_after_an_error() -> None:
    with pytest.raises(RuntimeError), backward_kernels.onednn(False):
        raise RuntimeError
    assert torch._C._get_mkldnn_enabled()
