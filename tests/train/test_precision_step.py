"""Groups of batches make the step of one large batch; what overflows is skipped; a bad loss ends all ranks alike."""

import warnings

import pytest
import torch
from torch import nn

from topout.schema.errors import ExitCode, TopoutError
from topout.train.compute import Compute


def line(weight: float = 1.0) -> nn.Module:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, weight)
    return model


def one_batch(stepper, model, *values: float, **options) -> bool:
    with stepper.forward(**options):
        loss = model(torch.tensor(values)[:, None]).float().mean()
    return stepper.backward(loss)


def made(lr: float = 1.0, **switches):
    model = line()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    compute = Compute(**{"precision": "fp32", **switches})
    compute.apply(model, optimizer)
    return model, compute.stepper(model, optimizer)


def test_four_batches_make_one_step_of_the_large_batch() -> None:
    model, stepper = made(accumulate=4)
    # the gradient is the mean of the inputs: (1 + 2 + 3 + 6) / 4 = 3
    assert [one_batch(stepper, model, value) for value in (1.0, 2.0, 3.0, 6.0)] == [False, False, False, True]
    assert model.weight.item() == 1.0 - 3.0
    assert stepper.step == 1
    assert model.weight.grad is None


def test_the_last_batches_of_an_epoch_can_end_a_group_early() -> None:
    model, stepper = made(accumulate=4)
    assert not one_batch(stepper, model, 2.0)
    assert one_batch(stepper, model, 6.0, is_last=True)
    # each sample weighs a quarter, as in full groups
    assert model.weight.item() == 1.0 - (2.0 + 6.0) / 4
    assert [one_batch(stepper, model, 4.0) for _ in range(4)] == [False, False, False, True]


def test_gradients_are_clipped_after_the_whole_group() -> None:
    model, stepper = made(accumulate=2, clip_norm=0.5)
    one_batch(stepper, model, 30.0)
    one_batch(stepper, model, 50.0)
    assert model.weight.item() == pytest.approx(0.5, abs=1e-5)


def test_fp16_clips_by_the_gradient_without_its_scale() -> None:
    model, stepper = made(precision="fp16", clip_norm=100.0)
    one_batch(stepper, model, 0.25, 0.25)  # two: the largest number of fp16 is 65504
    assert stepper.scaler.get_scale() == 65536
    assert model.weight.item() == 0.75


@pytest.mark.parametrize("fused", [True, False])
def test_a_step_that_overflows_fp16_is_skipped_and_counted(fused: bool) -> None:
    model, stepper = made(precision="fp16", fused_optimizer=fused)
    assert stepper.optimizer.param_groups[0]["fused"] is (True if fused else None)
    assert one_batch(stepper, model, 2.0)
    assert (model.weight.item(), stepper.skipped) == (1.0, 1)  # the first scale, 65536, is beyond fp16
    assert stepper.scaler.get_scale() == 32768
    assert one_batch(stepper, model, 0.5)
    assert (model.weight.item(), stepper.skipped, stepper.step) == (0.5, 1, 2)


def test_the_state_of_the_scaler_survives_a_restart() -> None:
    model, stepper = made(precision="fp16")
    one_batch(stepper, model, 2.0)
    one_batch(stepper, model, 0.5)
    state = stepper.state_dict()
    _, restarted = made(precision="fp16")
    restarted.load_state_dict(state)
    assert restarted.state_dict() == state
    assert (restarted.scaler.get_scale(), restarted.step, restarted.skipped) == (32768, 2, 1)


def test_a_restart_in_another_precision_begins_its_scaler_anew() -> None:
    _, in_bf16 = made(precision="bf16")
    _, in_fp16 = made(precision="fp16")
    in_fp16.load_state_dict(in_bf16.state_dict())
    assert in_fp16.scaler.get_scale() == 65536
    in_bf16.load_state_dict(in_fp16.state_dict())


def test_a_checkpoint_within_a_group_is_warned_of() -> None:
    model, stepper = made(accumulate=2)
    one_batch(stepper, model, 1.0)
    with pytest.warns(UserWarning, match="batch 1 and 2"):
        stepper.state_dict()
    one_batch(stepper, model, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stepper.state_dict()


def losses(stepper, model, values) -> None:
    for value in values:
        one_batch(stepper, model, value, value)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_not_finite_names_its_step(bad: float) -> None:
    model, stepper = made(lr=0.0, check_loss_every=4)
    losses(stepper, model, [1.0, 1.0, 1.0, 1.0, 1.0, bad, 1.0, 1.0])
    with pytest.raises(TopoutError, match="not finite at step 5 on rank 0") as ended:
        losses(stepper, model, [1.0, 1.0, 1.0, 1.0])
    assert ended.value.exit_code == ExitCode.JOB_FAILED


def test_settling_raises_at_once_and_only_for_what_was() -> None:
    model, stepper = made(lr=0.0, check_loss_every=64)
    losses(stepper, model, [1.0, 2.0])
    stepper.settle()
    stepper.settle()
    losses(stepper, model, [1.0, float("nan")])
    with pytest.raises(TopoutError, match="step 3 on rank 0"):
        stepper.settle()


def test_fp16_forgives_a_bad_loss_that_its_scaler_skips_but_not_a_row_of_them() -> None:
    model, stepper = made(lr=0.0, precision="fp16", check_loss_every=3)
    losses(stepper, model, [0.1, float("nan"), float("nan"), 0.1, 0.1, 0.1])
    stepper.settle()
    assert stepper.skipped == 2
    losses(stepper, model, [float("nan")] * 3)
    with pytest.raises(TopoutError, match="at step 6 on rank 0, and on all of 3 batches since"):
        stepper.settle()


def test_the_watch_can_be_switched_off() -> None:
    model, stepper = made(lr=0.0, check_loss_every=0)
    losses(stepper, model, [float("nan")] * 40)
    stepper.settle()


RANKS = """
import json, os, sys, torch, torch.distributed as dist
from torch import nn
from topout.train.compute import Compute
from topout.train.place import joined
from topout.schema.errors import TopoutError

dist.init_process_group("gloo")
place = joined(torch.device("cpu"), local_rank=dist.get_rank(), local_world_size=dist.get_world_size())
"""


def test_ranks_average_gradients_once_a_group(run_ranks) -> None:
    script = (
        RANKS
        + """
model = nn.Linear(1, 1, bias=False)
nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
compute = Compute(precision="fp32", accumulate=3)
compute.apply(model, optimizer)
model = nn.parallel.DistributedDataParallel(model)
exchanged = []
def counting(state, bucket):
    exchanged.append(bucket.index())
    return dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future().then(lambda done: done.value()[0])
model.register_comm_hook(None, counting)
stepper = compute.stepper(model, optimizer, place)
for number in range(6):
    with stepper.forward():
        loss = model(torch.tensor([[3.0 * (place.rank + 1)]])).mean()
    stepper.backward(loss)
print(json.dumps([len(exchanged), model.module.weight.item()]))
dist.destroy_process_group()
"""
    )
    # two steps of the mean gradient (3 + 6) / 2
    assert [ended.said for ended in run_ranks(script)] == [[2, -9.0]] * 2


def test_a_bad_loss_on_one_rank_ends_all_ranks_with_the_same_words(run_ranks) -> None:
    script = (
        RANKS
        + """
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model = nn.parallel.DistributedDataParallel(model)
stepper = Compute(check_loss_every=4).stepper(model, optimizer, place)
try:
    for number in range(40):
        with stepper.forward():
            loss = model(torch.ones(2, 1)).mean()
            if (place.rank, number) == (1, 5):
                loss = loss * float("nan")
        stepper.backward(loss)
except TopoutError as error:
    print(json.dumps([number, error.problem]))
dist.destroy_process_group()
"""
    )
    ended = run_ranks(script)
    # slots 4 to 7 are full at batch 7; the answer is read when the next four are, at batch 11
    assert [one.said for one in ended] == [[11, "The loss was not finite at step 5 on rank 1."]] * 2, ended[0].stderr


def test_a_compiled_model_still_exchanges_gradients_bucket_by_bucket(run_ranks) -> None:
    script = (
        RANKS
        + """
torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)])
compute = Compute(compile=True, compile_backend="aot_eager", precision="fp32", fused_optimizer=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
compute.apply(model, optimizer)
order = []
for name, parameter in model.named_parameters():
    parameter.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
wrapped = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.6)
def watching(state, bucket):
    order.append("bucket")
    return dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future().then(lambda done: done.value()[0])
wrapped.register_comm_hook(None, watching)
stepper = compute.stepper(wrapped, optimizer, place)
for _ in range(3):
    order.clear()
    with stepper.forward():
        loss = wrapped(torch.randn(4, 256)).mean()
    stepper.backward(loss)
first = order.index("bucket")
print(json.dumps([order.count("bucket") > 2, "0.weight" in order[first:], all(
    "_orig_mod" not in name for name in wrapped.module.state_dict())]))
dist.destroy_process_group()
"""
    )
    ended = run_ranks(script)
    assert [one.said for one in ended] == [[True, True, True]] * 2, ended[0].stderr
