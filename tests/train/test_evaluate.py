"""Figures of one process, whatever the number of ranks: every sample once, sums bit for bit, errors on all of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.train.conftest import RunRanks
from topout.schema.errors import TopoutError
from topout.train.evaluate import evaluate, mean, per_sample
from topout.train.place import alone

FIGURES = Path(__file__).with_name("evaluate_figures.py")
FAULTS = Path(__file__).with_name("evaluate_faults.py")


@pytest.fixture(scope="module")
def data() -> TensorDataset:
    return TensorDataset(torch.arange(10), torch.arange(10) % 3)


def test_numbers_are_summed_means_weighted_and_rows_gathered(data: TensorDataset) -> None:
    def step(batch: list[torch.Tensor]) -> dict[str, Any]:
        numbers, labels = batch
        return {
            "total": len(numbers),
            "largest": float(numbers.max()),
            "classes": torch.bincount(labels, minlength=3),
            "mean": mean(numbers.float().mean(), len(numbers)),
            "even": mean(numbers % 2 == 0),
            "rows": per_sample(numbers),
        }

    result = evaluate(step, DataLoader(data, 4), alone())
    assert list(result) == ["total", "largest", "classes", "mean", "even", "rows"]
    assert result["total"] == 10 and result["largest"] == 3.0 + 7.0 + 9.0
    assert result["classes"].tolist() == [4, 3, 3]
    assert result["mean"] == 4.5 and result["even"] == 0.5
    assert result["rows"].tolist() == list(range(10))


def test_a_sum_is_the_one_that_a_plain_loop_makes() -> None:
    values = TensorDataset(torch.tensor([0.1, 0.2, 0.3, 1e9, -1e9, 0.7], dtype=torch.float64))
    total = 0.0
    for (batch,) in DataLoader(values, 1):
        total += batch.item()
    assert evaluate(lambda batch: {"total": batch[0].sum()}, DataLoader(values, 1), alone())["total"] == total


def test_values_are_kept_where_the_next_batch_is_computed_into_the_same_memory() -> None:
    memory = torch.zeros(2)

    def step(batch: float) -> dict[str, Any]:
        memory.fill_(batch)
        return {"sum": memory[0], "mean": mean(memory[0], 1), "rows": per_sample(memory), "both": memory}

    result = evaluate(step, [1.0, 2.0], alone())
    assert (result["sum"], result["mean"], result["both"].tolist()) == (3.0, 1.5, [3.0, 3.0])
    assert result["rows"].tolist() == [1.0, 1.0, 2.0, 2.0]


def test_the_loader_is_gone_through_as_one_process_would(data: TensorDataset) -> None:
    def rows(loader: Any, **options: Any) -> list[int]:
        return evaluate(lambda batch: {"rows": per_sample(batch[0])}, loader, alone(), **options)["rows"].tolist()

    assert rows(DataLoader(data, 4, drop_last=True)) == list(range(8))
    assert sorted(rows(DataLoader(data, 4, shuffle=True))) == list(range(10))
    assert rows(DataLoader(data, batch_sampler=[[0, 1], [5]])) == [0, 1, 5]
    kept = DataLoader(data, 4, num_workers=1, persistent_workers=True)
    assert rows(kept) == rows(kept) == list(range(10))
    assert rows([[torch.tensor([7, 8])], [torch.tensor([9])]]) == [7, 8, 9]
    assert rows([[torch.tensor([7, 8])]], own_share=True) == [7, 8]
    assert evaluate(lambda batch: {"total": 1}, [], alone()) == {}
    assert evaluate(lambda batch: None, kept, alone()) == {}


def test_the_model_rests_meanwhile_and_is_then_as_before(data: TensorDataset) -> None:
    model = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2), nn.Dropout())
    model[1].eval()  # frozen, as in fine-tuning
    modes, grads = [], []

    def step(batch: list[torch.Tensor]) -> None:
        modes.append([module.training for module in model.modules()])
        grads.append(model(batch[0].float()[:, None]).requires_grad)

    before = torch.get_rng_state()
    evaluate(step, DataLoader(data, 5), alone(), model=model)
    assert modes == [[False] * 4] * 2 and grads == [False, False]
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([5, 5], "returned a int"),
        ([{"a": "text"}, {"a": "text"}], "'a' is a str"),
        ([{"a": mean(torch.ones(4), 4)}] * 2, r"'a' is a mean of a Tensor of shape \(4,\)"),
        ([{"a": mean("text", 4)}] * 2, "'a' is a mean of a str"),
        ([{"a": per_sample(["x", "y"])}] * 2, "'a' is a list"),
        ([{"a": 1}, {"a": mean(1.0, 2)}], "'a' is a number for one batch and a mean for another"),
        ([{"a": torch.ones(2)}, {"a": torch.ones(3)}], r"shapes \[\(2,\), \(3,\)\]"),
        ([{"a": torch.ones(2, dtype=torch.int8)}, {"a": torch.ones(1, dtype=torch.int8)}], "do not fit together"),
    ],
)
def test_what_cannot_be_put_together_is_refused(values: list[Any], says: str) -> None:
    with pytest.raises(TopoutError, match=says):
        evaluate(lambda batch: values[batch], [0, 1], alone())


def test_all_worlds_have_the_figures_of_one_process(run_ranks: RunRanks) -> None:
    """17 samples in batches of 4, with BatchNorm, DDP and workers; and 2 batches on 3 ranks. See the script."""
    (one,) = run_ranks(FIGURES, num_ranks=1)
    assert one.code == 0, one.stderr
    assert one.said["equal to a plain loop"] is True
    for num_ranks in (2, 3):
        for ended in run_ranks(FIGURES, num_ranks=num_ranks):
            assert ended.code == 0, ended.stderr
            assert ended.said["figures"] == one.said["figures"]
            assert ended.said["is as before"] is True


def test_what_fails_on_one_rank_ends_all_and_names_it(run_ranks: RunRanks) -> None:
    first, second = run_ranks(FAULTS)
    assert (first.code, second.code) == (0, 0), first.stderr + second.stderr
    assert first.said["step"] == "Rank 1 failed: ValueError: bad image"
    assert second.said["step"] == "bad image"
    differ = "Rank 1 has samples 9 where rank 0 has 8, batches 5 where rank 0 has 4."
    assert first.said["lengths"] == second.said["lengths"] == differ
    assert first.said["stream"] == second.said["stream"]
    assert first.said["stream"].startswith("Rank 1 has another first batch than rank 0.")
    assert first.said["own share"] == second.said["own share"] == [0, 1, 10, 11]
    assert first.said["sharded none"] == second.said["sharded none"] == "Rank 1 has no batch, and others have."
    assert [first.said["sharded step"], second.said["sharded step"]] == [
        "Rank 1 failed: ValueError: bad image",
        "bad image",
    ]
    assert [first.said["sharded loader"], second.said["sharded loader"]] == [
        "Rank 1 failed: OSError: disk gone",
        "disk gone",
    ]
