"""The tabular recipe: the function is the known one, figures are exact, and what is exported is what was trained."""

import json
import math
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import REPOSITORY
from topout.cli.main import main
from topout.recipes.surrogate_mlp import Surrogate, parse_options
from topout.recipes.surrogate_mlp_data import RANGES, borehole, make_rows, read_rows, read_table, write_rows
from topout.schema.errors import TopoutError

SCRIPT = REPOSITORY / "topout" / "recipes" / "surrogate_mlp.py"


def test_the_borehole_function_by_hand() -> None:
    row = np.array([[0.1, 1_000.0, 100_000.0, 1_100.0, 100.0, 700.0, 1_500.0, 10_000.0]])
    logarithm = math.log(10_000)
    expected = 2 * math.pi * 100_000 * 400 / (logarithm * (1 + 3e8 / (logarithm * 100) + 1_000))
    assert borehole(row)[0] == pytest.approx(expected)
    inputs, output = make_rows(2_000)
    assert (inputs >= RANGES[:, 0].astype(np.float32)).all() and (inputs <= RANGES[:, 1].astype(np.float32)).all()
    assert 60 < output.mean() < 95  # 77 by many authors


def test_the_model_takes_and_gives_numbers_in_their_own_units() -> None:
    inputs, output = torch.tensor([[1.0, 7.0], [3.0, 7.0]]), torch.tensor([100.0, 300.0])
    model = Surrogate(2, 1, 4)
    model.measure(inputs, output)
    torch.nn.init.zeros_(model.layers[-1].weight)
    torch.nn.init.ones_(model.layers[-1].bias)
    # one spread above the mean: 200 + sqrt(2) * 100; the second input never varies and does not divide by zero
    torch.testing.assert_close(model(inputs), torch.full((2,), 200 + math.sqrt(2) * 100))


def test_a_table_becomes_rows_and_what_is_no_number_is_named(tmp_path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text("a, energy, b\n1,10,2\n3,30,4\n")
    inputs, output = read_table(table, "energy")
    assert inputs.tolist() == [[1, 2], [3, 4]]
    assert output.tolist() == [10, 30]
    with pytest.raises(TopoutError, match="no column 'mass'"):
        read_table(table, "mass")
    table.write_text("a,energy\n1,10\nnan,30\n")
    with pytest.raises(TopoutError, match="line 3, column a"):
        read_table(table, "energy")
    table.write_text("a,energy\n1,ten\n")
    with pytest.raises(TopoutError, match="cannot be read"):
        read_table(table, "energy")


def test_a_file_without_the_arrays_is_an_error(tmp_path) -> None:
    np.savez(tmp_path / "train.npz", x=np.ones(3))
    with pytest.raises(TopoutError, match="no rows to learn from"):
        read_rows(tmp_path / "train.npz")


def figures(said: str) -> tuple[float, float]:
    found = re.match(r"test  R2 (-?\d\.\d+)  RMSE (\S+) ", said.splitlines()[-1])
    return float(found[1]), float(found[2])


def predicted(weights: Path, inputs: np.ndarray) -> np.ndarray:
    """By numpy, from the file alone."""
    data = weights.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    head, start = json.loads(data[8 : 8 + length]), 8 + length
    tensors = {}
    for name, entry in head.items():
        if name != "__metadata__":
            low, high = entry["data_offsets"]
            tensors[name] = np.frombuffer(data[start + low : start + high], np.float32).reshape(entry["shape"])
    x = (inputs - tensors["input_mean"]) / tensors["input_std"]
    numbers = sorted({int(name.split(".")[1]) for name in tensors if name.startswith("layers.")})
    for number in numbers:
        x = x @ tensors[f"layers.{number}.weight"].T + tensors[f"layers.{number}.bias"]
        x = x / (1 + np.exp(-x)) if number != numbers[-1] else x
    return x[:, 0] * tensors["output_std"] + tensors["output_mean"]


def test_two_ranks_learn_and_the_exported_weights_have_the_error_that_was_said(tmp_path, run_ranks) -> None:
    write_rows(tmp_path / "rows", *make_rows(6_000))
    for name in ("train", "test"):
        with pytest.raises(SystemExit) as ended:
            main(["pack", str(tmp_path / "rows" / f"{name}.npz"), str(tmp_path / "packs" / name), "--quiet"])
        assert not ended.value.code
    saving = ["--data", tmp_path / "packs", "--checkpoints", tmp_path / "saved", "--export", tmp_path / "w.safetensors"]
    first, second = run_ranks(SCRIPT, 2, ["--small", "--epochs", 12, "--batch-size", 64, *saving])
    assert (first.code, second.code) == (0, 0), first.stderr + second.stderr
    assert second.stdout == ""
    r2, rmse = figures(first.stdout)
    assert r2 > 0.9  # the mean of all outputs would give 0
    with np.load(tmp_path / "rows" / "test.npz") as rows:
        inputs, output = rows["inputs"], rows["output"]
    errors = predicted(tmp_path / "w.safetensors", inputs) - output
    assert math.sqrt((errors.astype(np.float64) ** 2).mean()) == pytest.approx(rmse, rel=2e-3)
    assert 1 - (errors**2).mean() / output.astype(np.float64).var() == pytest.approx(r2, abs=1e-4)


def test_made_up_rows_go_through_a_dataloader(run_ranks) -> None:
    [ended] = run_ranks(SCRIPT, 1, ["--small", "--rows", 4_000, "--epochs", 6, "--optimizer", "sgd"])
    assert ended.code == 0, ended.stderr
    assert figures(ended.stdout)[0] > 0.5


def test_export_without_checkpoints_is_a_usage_error(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(["--small", "--export", "w.safetensors"])
    assert ended.value.code == 2
    assert "--checkpoints" in capsys.readouterr().err
