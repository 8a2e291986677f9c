"""Training goes on exactly where it stopped, at another world size and batch size, with each sample once."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.feed.image_packs import write_images, write_records
from topout import Loader
from topout.feed.augment import ColorJitter, train_images
from topout.schema.errors import TopoutError

NUM = 60


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("resume") / "pack", NUM)


def leg(path: Path, state: dict | None, world_size: int, batch_size: int, num_batches: int | None, last: str):
    """All ranks of one job, from a state until `num_batches` or the end of the epoch; what they saw, and the state."""
    seen, states = [], []
    for rank in range(world_size):
        with Loader(path, batch_size, seed=7, rank=rank, world_size=world_size, last=last) as loader:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            iterator = iter(loader)
            own = []
            while num_batches is None or len(own) < num_batches:
                try:
                    own.append(next(iterator)["label"].numpy())
                except StopIteration:
                    break
            seen.extend(own)
            states.append(loader.state_dict())
    return np.concatenate([np.empty(0, np.int64), *seen]).tolist(), states


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    legs=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(0, 3)), max_size=4),
    end=st.tuples(st.integers(1, 4), st.integers(1, 9)),
)
def test_each_sample_is_seen_once_through_changes_of_the_world(
    records: Path, legs: list[tuple[int, int, int]], end: tuple[int, int]
) -> None:
    state, seen = None, []
    for world_size, batch_size, num_batches in legs:
        if (state["position"] if state else 0) + world_size * batch_size * num_batches > NUM:
            continue
        own, states = leg(records, state, world_size, batch_size, num_batches, "drop")
        assert all(one == states[0] for one in states)
        seen, state = seen + own, states[0]
    own, _ = leg(records, state, *end, None, "exact")
    assert sorted(seen + own) == list(range(NUM))


def test_a_resumed_run_sees_what_the_unbroken_run_saw(tmp_path: Path) -> None:
    path = write_images(tmp_path / "pack", 24)
    transform = train_images(16, ColorJitter(0.4, 0.4, 0.4, 0.1))
    with Loader(path, 4, transform=transform) as loader:
        unbroken = [batch for _ in range(2) for batch in loader]
    with Loader(path, 4, transform=transform) as loader:
        iterator = iter(loader)
        for _ in range(4):
            next(iterator)
        state = loader.state_dict()
    with Loader(path, 4, transform=transform, seed=99) as loader:
        loader.load_state_dict(state)
        loader.set_epoch(state["epoch"])  # as loops over epochs do
        resumed = [batch for _ in range(2) for batch in loader]
    assert len(unbroken) == 12 and len(resumed) == 8
    for (pixels, labels), (other_pixels, other_labels) in zip(unbroken[4:], resumed, strict=True):
        assert torch.equal(pixels, other_pixels) and torch.equal(labels, other_labels)


def test_a_state_from_between_epochs_begins_the_next(records: Path) -> None:
    with Loader(records, 7) as loader:
        assert len(list(loader)) == 8
        state = loader.state_dict()
        assert (state["epoch"], state["position"]) == (1, 0)
        expected = [batch["label"].tolist() for batch in loader]
    with Loader(records, 7) as loader:
        loader.load_state_dict(state)
        assert [batch["label"].tolist() for batch in loader] == expected


def test_batches_made_ahead_do_not_count_as_seen(records: Path) -> None:
    with Loader(records, 5, prefetch=4) as loader:
        iterator = iter(loader)
        next(iterator)
        import time

        time.sleep(0.2)  # the queue is full by now
        assert loader.state_dict()["position"] == 5


def test_set_epoch_of_another_epoch_begins_it_from_the_start(records: Path) -> None:
    with Loader(records, 5) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        loader.load_state_dict(state)
        loader.set_epoch(3)
        assert loader.state_dict()["position"] == 0 and loader.epoch == 3
        assert len(list(loader)) == 12


def test_a_state_of_another_pack_is_refused(records: Path, tmp_path: Path) -> None:
    other = write_records(tmp_path / "other", NUM, first=1)
    with Loader(records, 5) as loader, Loader(other, 5) as second:
        with pytest.raises(TopoutError, match="other data"):
            second.load_state_dict(loader.state_dict())


def test_a_resume_that_leaves_no_batch_says_so_and_the_next_epoch_is_whole(records: Path) -> None:
    with Loader(records, 16) as loader:
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        state = loader.state_dict()
    assert state["position"] == 48
    with Loader(records, 16) as loader:
        loader.load_state_dict(state)
        with pytest.warns(UserWarning, match="epoch 0 has no batch left: it goes on at sample 48 of 60") as told:
            assert list(loader) == []
        assert told[0].filename == __file__
        assert len(list(loader)) == 3 and loader.epoch == 2
    for last, num_samples in (("exact", 12), ("pad", 16)):
        with Loader(records, 16, last=last) as loader:
            loader.load_state_dict(state)
            assert [len(batch["label"]) for batch in loader] == [num_samples]


def test_the_length_is_of_a_whole_epoch_also_after_a_resume(records: Path) -> None:
    with Loader(records, 5) as loader:
        state = {**loader.state_dict(), "position": 50}
        loader.load_state_dict(state)
        assert len(loader) == 12
        assert len(list(loader)) == 2
