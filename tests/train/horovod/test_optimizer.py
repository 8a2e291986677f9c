"""`hvd.DistributedOptimizer` on two ranks gives what one process gives of the whole batch, in every mode."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.train.conftest import start_ranks
from tests.train.horovod.test_collectives import ENV


@pytest.fixture(scope="module")
def found() -> list[dict]:
    processes = start_ranks(Path(__file__).with_name("optimizer_modes.py"), 2, env=ENV)
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


def alone(clip: float | None = None) -> torch.Tensor:
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(3)
    for _ in range(4):
        inputs, labels = torch.randn(8, 4, generator=generator), torch.randn(8, 2, generator=generator)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), labels).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


MODES = ["plain", "kept gradients", "own compression", "two passes", "two passes, kept", "groups", "groups of tensors",
         "predivided", "replaced", "replaced, own compression", "sum", "synchronized twice", "no fusion"]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_two_ranks_train_as_one_process_with_both_halves(found, mode) -> None:
    torch.testing.assert_close(torch.tensor(found[0][mode]), alone(), atol=1e-6, rtol=1e-5)


def test_half_precision_is_near(found) -> None:
    torch.testing.assert_close(torch.tensor(found[0]["fp16"]), alone(), atol=2e-3, rtol=2e-3)
    assert found[0]["fp16"] != found[0]["plain"]


def test_clipping_after_synchronize_clips_the_averaged_gradient(found) -> None:
    torch.testing.assert_close(torch.tensor(found[0]["clipped"]), alone(clip=0.05), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("mode", [*MODES, "fp16", "clipped", "unused", "sparse", "sparse as dense"])
def test_replicas_are_equal_to_the_last_bit(found, mode) -> None:
    assert found[0][mode] == found[1][mode]


LATE = """\
topout: Gradients were changed between backward and optimizer.step(), and the change is lost.
  why  they travel to the other ranks while backward runs, and step() puts the averages in their place
  do   call optimizer.synchronize() before clipping, then with optimizer.skip_synchronize(): optimizer.step()
"""


def test_a_change_between_backward_and_step_that_is_lost_is_told_once_by_rank_0(found) -> None:
    first, second = (one["said of late changes"] for one in found)
    assert first == dict.fromkeys(first, LATE)
    assert second == dict.fromkeys(first, "")


def test_gradients_that_came_later_and_are_not_averaged_are_told_once_by_rank_0(found) -> None:
    first, second = (one["grown"]["wrapped once"] for one in found)
    assert first[0].startswith("topout: The gradients of 3 parameters are not averaged: each rank trains by its own.")
    assert first[0].count("not averaged") == 1 and "\n  do   " in first[0]
    assert second[0] == ""
    assert first[1] != second[1]


def test_wrapped_again_they_are_averaged_and_nothing_is_told(found) -> None:
    first, second = (one["grown"]["wrapped again"] for one in found)
    assert first == second and first[0] == ""


def test_no_mode_that_loses_nothing_is_told_to_lose_changes(found) -> None:
    # gradients of the first step travel at its end, so a change counts
    assert all("Gradients were changed" not in one["said of these"] + one["said of no loss"] for one in found)


def test_a_layer_that_one_rank_leaves_out_counts_there_as_zeros(found) -> None:
    torch.manual_seed(5)
    model = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 3), nn.Linear(1, 1)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(3):
        optimizer.zero_grad()
        inputs = torch.ones(2, 3)
        on_rank_0 = model[0](inputs if number > 0 else model[1](inputs)).sum()
        on_rank_1 = model[0](model[1](inputs)).sum()
        ((on_rank_0 + on_rank_1) / 2).backward()
        optimizer.step()
    expected = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    torch.testing.assert_close(torch.tensor(found[0]["unused"]), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("mode", "kind"), [("sparse", torch.optim.SGD), ("sparse as dense", torch.optim.SparseAdam)])
def test_sparse_gradients_add_up_row_by_row_and_stay_sparse(found, mode, kind) -> None:
    torch.manual_seed(1)
    model = nn.Embedding(6, 2, sparse=True)
    optimizer = kind(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (model(torch.tensor([0, 1, 1, 2, 3, 1, 1, 5])).square().sum() / 2).backward()
        optimizer.step()
    torch.testing.assert_close(torch.tensor(found[0][mode]), model.weight.detach().reshape(-1))


def test_the_roots_options_and_moments_reach_all_ranks(found) -> None:
    # two steps with gradient 2: 0.1 * 2, then 0.9 * 0.2 + 0.1 * 2; the scheduler halved 0.2
    for lr, step, moment in (one["optimizer state"] for one in found):
        assert (lr, step) == (pytest.approx(0.1), 2.0)
        assert moment == pytest.approx(0.38)


def test_mistakes_are_refused_in_horovods_words(found) -> None:
    for said in (one["mistakes"] for one in found):
        assert "zero_grad() was called after loss.backward()" in said["race"]
        assert said["step"] is None and said["after"] is None
        assert "more than backward_passes_per_step times" in said["twice"]
        assert (said["unnamed"], said["doubled"], said["adasum"]) == ("ValueError", "ValueError", "TopoutError")
        assert said["is SGD"]


def test_other_models_on_other_ranks_end_all_ranks_naming_the_parameter(found) -> None:
    for said in (one["mistakes"]["models"] for one in found):
        assert "«weight, (1, 2), torch.float32» on rank 0 and «weight, (1, 3), torch.float32» on rank 1" in said
