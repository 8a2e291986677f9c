"""At a batch of 4,096 LARS learns Fashion-MNIST by its rule alone, where SGD by the linear rule learns nothing."""

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

import large_batch_accuracy as benchmark

from topout.schema.errors import TopoutError


def test_lars_by_rule_learns_what_sgd_by_the_linear_rule_does_not():
    if not benchmark.FOLDER.exists():
        pytest.skip("dataset-fashion-mnist is not installed")
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        lars, linear = processes.map(accuracy_of, (benchmark.LARS, benchmark.LINEAR_SGD))
    assert lars >= 0.78
    assert linear <= 0.20


def accuracy_of(way):
    torch.set_num_threads(1)
    return benchmark.trained(benchmark.fashion(), way, 4096, seed=0)


def test_without_the_images_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(benchmark, "FOLDER", tmp_path)
    with pytest.raises(TopoutError) as refused:
        benchmark.fashion()
    assert refused.value.do == "apt-get install dataset-fashion-mnist"
