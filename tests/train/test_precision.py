"""Switches change how a step is computed, not which model, optimizer or schedule the script holds."""

import copy
import pickle

import pytest
import torch
from torch import nn

from topout.schema.errors import TopoutError
from topout.train import precision
from topout.train.compute import Compute
from topout.train.fused import fuse

CPU = torch.device("cpu")


def small_net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(32, 5),
    )  # fmt: skip


def images(num: int = 4) -> torch.Tensor:
    return torch.randn(num, 3, 8, 8, generator=torch.Generator().manual_seed(num))


def test_bf16_computes_in_bfloat16_and_keeps_parameters_in_fp32() -> None:
    model = small_net()
    stepper = Compute(precision="bf16").stepper(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with stepper.forward():
        scores = model(images())
        loss = scores.square().mean()
    assert scores.dtype == torch.bfloat16
    assert stepper.backward(loss)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert not stepper.scaler.is_enabled()


def test_auto_is_fp32_on_a_cpu_and_compiles_nothing() -> None:
    model = small_net()
    Compute().apply(model)
    assert precision.resolved("auto", CPU) == "fp32"
    assert model._compiled_call_impl is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"precision": "float8"},
        {"compile": "fastest"},
        {"onednn_backward": "sometimes"},
        {"accumulate": 0},
        {"accumulate": 2.5},
        {"check_loss_every": -1},
        {"clip_norm": 0.0},
        {"clip_norm": float("nan")},
        {"checkpoint_activations": "layer1"},
    ],
)
def test_an_unknown_value_is_refused_when_it_is_given(wrong) -> None:
    with pytest.raises(TopoutError) as refusal:
        Compute(**wrong)
    [value] = wrong.values()
    assert repr(value) in refusal.value.problem


def test_a_wrapped_model_is_refused(monkeypatch) -> None:
    model = small_net()
    model.no_sync = lambda: None
    with pytest.raises(TopoutError, match="after the model was wrapped"):
        Compute().apply(model)


def test_tf32_can_be_read_by_old_and_new_names() -> None:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        precision.set_tf32(True)
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        assert torch.backends.cudnn.allow_tf32
        precision.set_tf32(False)
        assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert not torch.backends.cudnn.allow_tf32
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def test_channels_last_reorders_weights_and_changes_no_value() -> None:
    model, plain = small_net(), small_net()
    parameter = model[0].weight
    Compute().apply(model)
    assert model[0].weight is parameter
    assert parameter.stride() == (27, 1, 9, 3)
    assert torch.equal(parameter, plain[0].weight)
    torch.testing.assert_close(model(images()), plain(images()))


def test_compiling_keeps_the_names_of_parameters() -> None:
    model, plain = small_net(), small_net()
    Compute(compile=True, compile_backend="aot_eager", channels_last=False).apply(model)
    assert model._compiled_call_impl is not None
    assert list(model.state_dict()) == list(plain.state_dict())
    torch.testing.assert_close(model(images()), plain(images()))


def test_a_mode_of_the_compiler_can_be_joined_by_options() -> None:
    both = Compute(compile="max-autotune-no-cudagraphs", compile_options={"combo_kernels": True})._how_to_compile()
    assert both == {"options": {"max_autotune": True, "coordinate_descent_tuning": True, "combo_kernels": True}}
    assert Compute(compile=True)._how_to_compile() == {"mode": None}


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_an_optimizer_goes_on_fused_where_it_stood(kind) -> None:
    def steps(num_before: int, num_after: int) -> list[torch.Tensor]:
        model = small_net()
        options = {"lr": 0.01} | ({"momentum": 0.9} if kind is torch.optim.SGD else {})
        optimizer = kind(model.parameters(), **options)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        for number in range(num_before + num_after):
            if number == num_before:
                assert Compute().apply(model, optimizer)[1] is optimizer
                assert all(group["fused"] for group in optimizer.param_groups)
            model(images()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        return [parameter.detach().clone(memory_format=torch.contiguous_format) for parameter in model.parameters()]

    for changed, unchanged in zip(steps(3, 3), steps(6, 0), strict=True):
        torch.testing.assert_close(changed, unchanged, rtol=1e-5, atol=1e-6)


def test_state_made_before_follows_the_order_of_its_parameter() -> None:
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(images()).sum().backward()
    optimizer.step()
    before = optimizer.state[model[0].weight]["momentum_buffer"].clone()
    Compute().apply(model, optimizer)
    after = optimizer.state[model[0].weight]["momentum_buffer"]
    assert after.stride() == model[0].weight.stride() != before.stride()
    assert torch.equal(after, before)


def test_an_optimizer_of_another_kind_or_with_a_wish_of_its_own_is_left_alone() -> None:
    class Own(torch.optim.SGD):
        pass

    parameters = list(small_net().parameters())
    assert not fuse(Own(parameters, lr=0.1))
    assert not fuse(torch.optim.RMSprop(parameters))
    assert not fuse(torch.optim.SGD(parameters, lr=0.1, foreach=True))
    assert not fuse(torch.optim.SGD(parameters, lr=0.1, fused=False))
    assert fuse(torch.optim.SGD(parameters, lr=0.1))


def test_parameters_of_half_the_size_are_trained_by_what_trains_them() -> None:
    """Torch's fused SGD leaves them as they are on a CPU."""
    parameter = torch.nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    assert not fuse(optimizer)
    assert fuse(torch.optim.Adam([parameter]))
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert parameter.unique().tolist() == [0.5]


def test_a_first_step_that_overflows_leaves_no_momentum() -> None:
    parameter = torch.nn.Parameter(torch.ones(64))
    optimizer = torch.optim.SGD([parameter], lr=0.5, momentum=0.9)
    assert fuse(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for factor in (float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale((parameter * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert parameter.unique().tolist() == [0.5]
    assert optimizer.state[parameter]["momentum_buffer"].unique().tolist() == [1.0]


def gradients(model: nn.Module) -> list[torch.Tensor]:
    model(images()).square().mean().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


class Tower(nn.Module):
    """Named parts with batch statistics and chance in them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.stem = nn.Conv2d(3, 4, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Dropout(0.2)) for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return x


@pytest.mark.parametrize("compiles", [False, True])
def test_checkpointed_activations_give_the_same_gradients_and_running_means(compiles: bool) -> None:
    plain, saving = Tower(), Tower()
    Compute(
        checkpoint_activations=("blocks.*",), channels_last=False, compile=compiles, compile_backend="aot_eager"
    ).apply(saving)
    if compiles:
        # dropout draws other numbers inside a compiled program
        for part in (*plain.modules(), *saving.modules()):
            part.p = 0.0
    results = []
    for model in (plain, saving):
        torch.manual_seed(11)
        results.append(gradients(model))
    for saved, kept in zip(*results, strict=True):
        torch.testing.assert_close(saved, kept)
    for (name, kept), (_, saved) in zip(plain.named_buffers(), saving.named_buffers(), strict=True):
        torch.testing.assert_close(saved, kept, msg=name)
    assert int(saving.blocks[0][1].num_batches_tracked) == 1


def test_checkpointing_computes_a_named_part_twice_and_no_other() -> None:
    model = Tower()
    Compute(checkpoint_activations=("blocks.1", "blocks.1.*")).apply(model)
    calls = []
    for name in ("stem", "blocks.0.0", "blocks.1.0"):
        model.get_submodule(name).register_forward_hook(lambda *_, name=name: calls.append(name))
    gradients(model)
    assert sorted(calls) == ["blocks.0.0", "blocks.1.0", "blocks.1.0", "stem"]
    assert type(model.blocks[1][0]) is nn.Conv2d  # its parent does it for it


def test_a_checkpointed_model_can_be_copied_and_pickled() -> None:
    model = Tower()
    Compute(checkpoint_activations=("blocks.*",)).apply(model)
    assert list(model.state_dict()) == list(Tower().state_dict())
    assert isinstance(model.blocks[0], nn.Sequential)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            other.blocks[0][0].weight.zero_()
        assert model.blocks[0][0].weight.abs().sum() > 0
        assert all(gradient.isfinite().all() for gradient in gradients(other))


def test_a_submodule_that_does_not_exist_is_named() -> None:
    with pytest.raises(TopoutError) as refusal:
        Compute(checkpoint_activations=("layer9",)).apply(Tower())
    assert "'layer9'" in refusal.value.problem
    assert "stem, blocks" in refusal.value.why


def test_a_cpu_that_must_emulate_bf16_is_named_once(monkeypatch, capsys) -> None:
    precision._say_emulated.cache_clear()
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    said = []
    for can in (True, False, False):
        monkeypatch.setattr(precision, "computes_in_bf16", lambda can=can: can)
        Compute(precision="bf16").stepper(model, optimizer)
        Compute(precision="fp32").stepper(model, optimizer)
        said.append(capsys.readouterr().err.count("emulation"))
    assert said == [0, 1, 0]
