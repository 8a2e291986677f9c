"""`topout run -n 2 --ddp` comes to what one process with the whole batch comes to, for scripts as people write them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.train.horovod.test_script import plain_environment

KINDS = ["plain", "clipped", "clipped by hand", "kept", "accumulated", "scaler", "plateau", "workers"]
OTHERS = ["closure", "adversaries", "frozen", "frozen in between", "compiled", "partly", "added"]
OTHERS += ["looked at", "looked at by turns"]
OWN_CLASSES = ["turned", "turned and scaled"]
SCRIPT = Path(__file__).with_name("single_device.py")


AS_TWO_RANKS = ("-m", "topout", "run", "-n", "2", "--ddp", "--no-report")


def run(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder, env=plain_environment(), capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip


class Results:
    def __init__(self, folder: Path) -> None:
        alone = run(folder, str(SCRIPT), "16", "results", *KINDS)
        assert alone.returncode == 0, alone.stderr
        self.ended = run(folder, *AS_TWO_RANKS, str(SCRIPT), "8", "results", *KINDS)
        assert self.ended.returncode == 0, self.ended.stderr
        self.alone, self.first, self.second = (
            json.loads((folder / f"results.{name}").read_text()) for name in ("alone", "0", "1")
        )


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Results:
    return Results(tmp_path_factory.mktemp("ddp"))


@pytest.mark.parametrize("kind", [*KINDS, *OTHERS, *OWN_CLASSES])
def test_parameters_are_those_of_one_process_with_the_whole_batch(results, kind) -> None:
    torch.testing.assert_close(torch.tensor(results.first[kind]), torch.tensor(results.alone[kind]))


@pytest.mark.parametrize("kind", [*KINDS, *OTHERS, *OWN_CLASSES, "evaluated"])
def test_replicas_are_equal_to_the_last_bit(results, kind) -> None:
    assert results.first[kind] == results.second[kind]


def test_trainings_differ_from_each_other_so_that_the_comparison_means_something(results) -> None:
    kinds = [json.dumps(results.alone[kind]) for kind in KINDS if kind not in ("kept", "workers")]
    assert len(set(kinds)) == len(kinds)


def test_evaluation_sees_every_sample_on_every_rank(results) -> None:
    assert results.first["evaluated"]["seen"] == [64, 64]


def test_a_checkpoint_is_written_once_and_whole(results) -> None:
    assert results.first["evaluated"]["saved"] and results.second["evaluated"]["saved"]


def test_the_length_of_a_training_loader_is_that_of_the_ranks_share(results) -> None:
    assert results.alone["evaluated"]["steps"] == results.first["evaluated"]["steps"] == 4


def test_evaluation_has_the_statistics_of_rank_0_on_all_ranks(results) -> None:
    (before_0, after_0), (before_1, after_1) = results.first["statistics"], results.second["statistics"]
    assert before_0 == after_0 == after_1
    assert before_1 != after_1


def test_the_first_line_says_what_was_done(results) -> None:
    line = 1 + SCRIPT.read_text().splitlines().index(
        "    return DataLoader(dataset, batch_size=BATCH_SIZE, sampler=FixedOrder(), **options)"
    )
    said = (
        f"topout: single_device.py runs data-parallel on 2 ranks: DataLoader at single_device.py:{line} sharded "
        "(64 samples, 2 x 8 a step), 4 tensors averaged in 1 group"
    )
    assert said in results.ended.stdout + results.ended.stderr
    assert "len(loader.dataset) is 2 times too many" in results.ended.stdout + results.ended.stderr
    assert "Unsupported" not in results.ended.stderr and "unwaited collective" not in results.ended.stderr
