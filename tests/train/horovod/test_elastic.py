"""`hvd.elastic` in a job of fixed size: state is made equal, committed, restored, and samples are not seen again."""

import json
from pathlib import Path

import pytest

from tests.train.conftest import start_ranks
from tests.train.horovod.test_collectives import ENV


@pytest.fixture(scope="module")
def found() -> list[dict]:
    processes = start_ranks(Path(__file__).with_name("elastic_job.py"), 2, env=ENV)
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


def test_all_ranks_begin_with_rank_0s_values(found) -> None:
    first, second = (one["at first"] for one in found)
    assert first == second
    assert first[1:] == [0, 0.1]


def test_what_was_committed_comes_back_as_often_as_it_is_restored(found) -> None:
    assert [(one["restored"], one["again"]) for one in found] == [(True, True)] * 2


def test_a_scheduler_made_before_the_wrapping_drives_the_restored_optimizer(found) -> None:
    assert [one["scheduled"] for one in found] == [0.05, 0.05]


def test_batches_that_any_rank_recorded_are_not_seen_again(found) -> None:
    assert [one["indices"] for one in found] == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]
    assert [one["synced"][-2:] for one in found] == [[[8, 10], 2], [[9, 11], 2]]


def test_sync_gives_all_ranks_rank_0s_values(found) -> None:
    assert found[0]["synced"][:5] == found[1]["synced"][:5]
    assert found[0]["synced"][2:5] == [1, 1, 0.5]
    assert [(one["returned"], one["reset"]) for one in found] == [("done", 1)] * 2
