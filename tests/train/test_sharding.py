"""A sharded loader is an ordinary one that deals each sample to one rank, in an order that any world size shares."""

import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from topout.schema.errors import TopoutError
from topout.train import agreement
from topout.train.place import Place, alone
from topout.train.sharding import shard


@pytest.fixture(autouse=True)
def ranks_that_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several ranks in one process: each hears that the others say the same. Real ranks: test_sharding_ranks.py."""
    monkeypatch.setattr(agreement, "gather", lambda value, place: [value] * place.world_size)


def at(rank: int, world_size: int) -> Place:
    return Place(rank=rank, world_size=world_size, device=torch.device("cpu"))


def shards(world_size: int, num: int, batch_size: int = 1, seed: int = 0, **options: Any) -> list[DataLoader]:
    return [
        shard(DataLoader(range(num), batch_size, **options), at(rank, world_size), seed=seed)
        for rank in range(world_size)
    ]


def taken(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def joined(batches: list[list[int]]) -> list[int]:
    return [sample for batch in batches for sample in batch]


def flat(loaders: list[DataLoader]) -> list[int]:
    return joined([batch for loader in loaders for batch in taken(loader)])


def test_an_ordinary_loader_comes_back_with_all_it_had() -> None:
    def collate(samples: list[Any]) -> torch.Tensor:
        return -torch.tensor(samples)

    data = range(10)
    given_loader = DataLoader(
        data, 4, shuffle=True, num_workers=1, collate_fn=collate, pin_memory=True, timeout=60, worker_init_fn=print,
        multiprocessing_context="spawn", prefetch_factor=3, persistent_workers=True, drop_last=True,
    )  # fmt: skip
    loader = shard(given_loader, alone())
    assert isinstance(loader, DataLoader) and loader is not given_loader and loader.dataset is data
    for name in (
        "batch_size", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory", "timeout", "drop_last",
        "worker_init_fn", "multiprocessing_context", "prefetch_factor", "persistent_workers",
    ):  # fmt: skip
        assert getattr(loader, name) is getattr(given_loader, name)
    assert len(loader) == 2
    assert shard(loader, alone()) is loader


def test_ranks_take_turns_in_each_global_batch() -> None:
    first, second = shards(2, 8, 2)
    assert taken(first) == [[0, 2], [4, 6]]
    assert taken(second) == [[1, 3], [5, 7]]
    assert len(first) == len(second) == 2


def test_the_last_batches_are_shared_so_that_no_rank_goes_without() -> None:
    assert [taken(loader) for loader in shards(2, 10, 4)] == [[[0, 2], [4, 6, 8]], [[1, 3], [5, 7, 9]]]
    assert [taken(loader) for loader in shards(2, 10, 4, drop_last=True)] == [[[0, 2, 4, 6]], [[1, 3, 5, 7]]]


def test_each_iteration_has_another_order_and_every_world_the_same() -> None:
    def first_global_batch(world_size: int, batch_size: int) -> set[int]:
        loaders = shards(world_size, 24, batch_size, shuffle=True, seed=5)
        return {sample for loader in loaders for sample in next(iter(loader)).tolist()}

    (loader,) = shards(1, 24, 12, shuffle=True, seed=5)
    first, second = taken(loader), taken(loader)
    assert first != second and sorted(joined(first)) == sorted(joined(second)) == list(range(24))
    assert first_global_batch(2, 6) == first_global_batch(3, 4) == set(first[0])
    assert taken(shards(1, 24, 12, shuffle=True, seed=6)[0]) != first
    loader.set_epoch(0)
    assert taken(loader) == first


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    num=st.integers(8, 60),
    legs=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=4),
)
def test_each_sample_comes_once_an_epoch_whatever_the_worlds_it_is_spread_over(
    num: int, legs: list[tuple[int, int, int]]
) -> None:
    """Each leg takes some batches in a world of its own and leaves a state; the last goes to the epoch's end."""
    seen: list[int] = []
    state = shards(1, num, shuffle=True, seed=3)[0].state_dict()
    may_repeat = 0
    for number, (world_size, batch_size, num_batches) in enumerate(legs):
        loaders = shards(world_size, num, batch_size, shuffle=True)
        left = num - state["position"]
        may_repeat += left < world_size or batch_size == 1
        states = []
        for loader in loaders:
            loader.load_state_dict(state)
            batches = islice(loader, None if number == len(legs) - 1 else num_batches)
            seen.extend(sample for batch in batches for sample in batch.tolist())
            states.append(loader.state_dict())
        assert all(other == states[0] for other in states)
        state = states[0]
        if state["epoch"] == 1:
            break
    assert sorted(set(seen)) == list(range(num))
    assert len(seen) == num or may_repeat


class Surroundings(Dataset):
    """What a worker finds: how many modes every call of torch goes through, and where tensors are made."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _: int) -> tuple[int, str]:
        return torch._C._len_torch_function_stack(), torch.zeros(1).device.type


def test_workers_call_torch_directly_and_make_tensors_on_the_host() -> None:
    loader = shard(DataLoader(Surroundings(), num_workers=1), at(0, 1))
    (num_modes, device) = next(iter(loader))
    assert (num_modes.item(), device) == (0, ("cpu",))
    with torch.device("meta"):
        (_, device) = next(iter(loader))
    assert device == ("cpu",)


def test_a_state_counts_batches_received_not_those_that_workers_made_ahead() -> None:
    (loader,) = shards(1, 12, 2, num_workers=2, prefetch_factor=2)
    assert loader.state_dict() == {
        "version": 1, "seed": 0, "epoch": 0, "position": 0, "samples": 12, "order": None,
    }  # fmt: skip
    iterator = iter(loader)
    assert loader.state_dict()["position"] == 0
    next(iterator)
    assert loader.state_dict()["position"] == 2
    assert len(list(iterator)) == 5
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (1, 0)


def test_a_state_taken_at_the_last_batch_leaves_an_empty_rest_of_that_epoch() -> None:
    (loader,) = shards(1, 4, 2)
    for _ in loader:
        state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (0, 4)
    loader.load_state_dict(state)
    assert (loader.epoch, taken(loader)) == (0, [])
    assert (loader.epoch, taken(loader)) == (1, [[0, 1], [2, 3]])


def test_set_epoch_of_the_restored_epoch_goes_on_within_it() -> None:
    (loader,) = shards(1, 6, 2)
    loader.load_state_dict({**loader.state_dict(), "epoch": 3, "position": 4})
    loader.set_epoch(3)
    assert taken(loader) == [[4, 5]]
    loader.set_epoch(3)
    assert len(taken(loader)) == 3


class Noisy(Dataset):
    """Draws from everything that augmentations draw from."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, number: int) -> torch.Tensor:
        noise = [torch.rand(()).item(), np.random.rand(), random.random()]
        return torch.tensor([number, *noise], dtype=torch.float64)


def rng_states() -> tuple[Any, ...]:
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def restore(states: tuple[Any, ...]) -> None:
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_a_resumed_epoch_is_bit_equal_to_the_uninterrupted_one(num_workers: int, persistent: bool) -> None:
    def loader() -> DataLoader:
        torch.manual_seed(7)  # what a script does before it restores a checkpoint
        return shard(
            DataLoader(Noisy(), 2, shuffle=True, num_workers=num_workers, persistent_workers=persistent), at(1, 2)
        )

    whole = loader()
    epochs: list[list[torch.Tensor]] = []
    for _ in range(2):
        epochs.append([])
        for batch in whole:
            epochs[-1].append(batch)
            if len(epochs) == 2 and len(epochs[-1]) == 1:
                state, rngs = whole.state_dict(), rng_states()
    resumed = loader()
    resumed.load_state_dict(state)
    restore(rngs)
    rest = list(resumed)
    assert len(rest) == 2
    assert all(torch.equal(own, other) for own, other in zip(rest, epochs[1][1:], strict=True))
    draws = torch.cat([torch.cat(batches) for batches in epochs])[:, 1:]
    assert len(set(draws.flatten().tolist())) == draws.numel(), "no two samples have the same draws"


@pytest.mark.parametrize("num_workers", [0, 1])
def test_going_through_a_loader_leaves_the_script_s_random_numbers_alone(num_workers: int) -> None:
    (loader,) = shards(1, 12, 2, shuffle=True, num_workers=num_workers)
    before = torch.get_rng_state()
    list(loader)
    assert torch.equal(torch.get_rng_state(), before)


def loaders_with(sampler: Callable[[], Any], world_size: int = 2, num: int = 12, batch_size: int = 2) -> list[Any]:
    return [
        shard(DataLoader(range(num), batch_size, sampler=sampler()), at(rank, world_size)) for rank in range(world_size)
    ]


def test_samplers_of_torch_are_dealt_out() -> None:
    assert sorted(flat(loaders_with(lambda: SubsetRandomSampler([1, 3, 5, 7])))) == [1, 3, 5, 7]
    weights = [0.0] * 6 + [1.0] * 6
    weighted = loaders_with(lambda: WeightedRandomSampler(weights, 12))
    one = [*weighted, *loaders_with(lambda: WeightedRandomSampler(weights, 12), world_size=1, batch_size=4)]
    first, second, whole = (joined(taken(loader)) for loader in one)
    assert set(whole) <= set(range(6, 12)) and sorted(first + second) == sorted(whole)
    some = flat(loaders_with(lambda: RandomSampler(range(12), num_samples=5), world_size=1))
    assert len(set(some)) == 5
    more = flat(loaders_with(lambda: RandomSampler(range(12), num_samples=24), world_size=1))
    assert sorted(more[:12]) == sorted(more[12:]) == list(range(12)) and more[:12] != more[12:]
    drawn = flat(loaders_with(lambda: RandomSampler(range(12), replacement=True, num_samples=30)))
    assert len(drawn) == 30


def test_a_distributed_sampler_is_replaced_without_its_duplicates() -> None:
    def sampler(rank: int, num_replicas: int) -> DistributedSampler:
        return DistributedSampler(range(11), num_replicas, rank, shuffle=True)

    parts = [shard(DataLoader(range(11), 2, sampler=sampler(rank, 2)), at(rank, 2)) for rank in range(2)]
    assert sorted(flat(parts)) == list(range(11))
    with pytest.raises(TopoutError, match="deals out to 4"):
        shard(DataLoader(range(11), 2, sampler=sampler(0, 4)), at(0, 2))


class Own:
    """A sampler as scripts write them; `draw` gives an epoch's order."""

    def __init__(self, draw: Callable[[], list[Any]], length: int | None = None) -> None:
        self.draw = draw
        self.length = length

    def __len__(self) -> int:
        return len(self.draw()) if self.length is None else self.length

    def __iter__(self) -> Iterator[Any]:
        return iter(self.draw())


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.randperm(12).tolist(),
        lambda: np.random.permutation(12).tolist(),
        lambda: random.sample(range(12), 12),
    ],
)
def test_an_own_sampler_is_seeded_dealt_out_and_resumed(draw: Callable[[], list[int]]) -> None:
    loaders = loaders_with(lambda: Own(draw, 12))
    rngs = rng_states()
    first = [taken(loader) for loader in loaders]
    assert torch.equal(torch.get_rng_state(), rngs[0]) and random.getstate() == rngs[2]
    assert sorted(joined(first[0] + first[1])) == list(range(12))
    assert [taken(loader) for loader in loaders] != first
    (alone_,) = loaders_with(lambda: Own(draw, 12), world_size=1, batch_size=3)
    iterator = iter(alone_)
    seen = next(iterator).tolist()
    resumed = loaders_with(lambda: Own(draw, 12))
    for loader in resumed:
        loader.load_state_dict(alone_.state_dict())
    assert sorted(seen + flat(resumed)) == list(range(12))


def test_an_own_sampler_that_gives_another_order_after_a_restart_is_noticed() -> None:
    def loader(order: list[int]) -> DataLoader:
        return shard(DataLoader(range(6), 2, sampler=Own(lambda: order)), alone())

    before = loader([0, 1, 2, 3, 4, 5])
    next(iter(before))
    after = loader([5, 4, 3, 2, 1, 0])
    after.load_state_dict(before.state_dict())
    with pytest.raises(TopoutError, match="another order for epoch 0"):
        iter(after)
    shorter = loader([0, 1, 2, 3])
    shorter.load_state_dict(before.state_dict())
    with pytest.raises(TopoutError, match="other data"):
        iter(shorter)


def test_samplers_without_an_end_or_an_honest_length_are_refused() -> None:
    with pytest.raises(TopoutError, match="has no length"):
        shard(DataLoader(range(6), 2, sampler=iter([1, 2])), alone())
    for length, says in ((2, "length 2 and gives more"), (4, "length 4 and gives 3")):
        loader = shard(DataLoader(range(6), 1, sampler=Own(lambda: [1, 2, 3], length)), alone())
        with pytest.raises(TopoutError, match=says):
            iter(loader)


class Growing(Own):
    """Takes more of the data in each epoch, as a curriculum does."""

    def __init__(self) -> None:
        super().__init__(lambda: list(range(4 * (self.epoch + 1))))
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_a_sampler_may_have_another_length_in_each_epoch() -> None:
    loaders = loaders_with(Growing)
    for num in (4, 8, 12):
        assert sorted(flat(loaders)) == list(range(num))
        assert [len(loader) for loader in loaders] == [num // 4, num // 4]
    loaders[0].set_epoch(0)
    assert taken(loaders[0]) == [[0, 2]]


def test_batches_of_an_own_batch_sampler_stay_together_and_the_last_are_divided() -> None:
    batches = [[0, 1], [2, 3, 4], [5, 6], [7, 8], [9, 10, 11, 12]]
    loaders = [shard(DataLoader(range(13), batch_sampler=Own(lambda: batches)), at(rank, 2)) for rank in range(2)]
    assert [taken(loader) for loader in loaders] == [
        [[0, 1], [5, 6], [9, 11]],
        [[2, 3, 4], [7, 8], [10, 12]],
    ]
    assert len(loaders[0]) == 3
    own = [BatchSampler(SequentialSampler(range(8)), 2, False) for _ in range(2)]
    plain = [shard(DataLoader(range(8), batch_sampler=sampler), at(rank, 2)) for rank, sampler in enumerate(own)]
    assert [taken(loader) for loader in plain] == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]


def test_a_data_set_that_makes_its_own_batches_is_dealt_out() -> None:
    data = TensorDataset(torch.arange(12))
    by_lists = [
        shard(DataLoader(data, None, sampler=BatchSampler(SequentialSampler(data), 3, False)), at(rank, 2))
        for rank in range(2)
    ]
    assert [[batch[0].tolist() for batch in loader] for loader in by_lists] == [
        [[0, 2, 4], [6, 8, 10]],
        [[1, 3, 5], [7, 9, 11]],
    ]
    ready_made = [[0, 1], [2, 3], [4, 5]]
    ones = [shard(DataLoader(ready_made, None), at(rank, 2)) for rank in range(2)]
    # what cannot be divided is repeated: nobody may be without a batch
    assert [list(loader) for loader in ones] == [[[0, 1], [4, 5]], [[2, 3], [4, 5]]]


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def test_a_stream_is_refused_on_several_ranks_unless_it_deals_out_by_itself() -> None:
    loader = DataLoader(Stream())
    with pytest.raises(TopoutError, match="Stream is an iterable one"):
        shard(loader, at(0, 2))
    assert shard(loader, at(0, 2), own_share=True) is loader
    assert shard(loader, alone()) is loader
    with pytest.raises(TopoutError, match="list is no DataLoader"):
        shard([1, 2], alone())


def test_too_little_data_for_the_world_is_refused() -> None:
    with pytest.raises(TopoutError, match="3 samples are too few for 4 ranks"):
        shards(4, 3)
    with pytest.raises(TopoutError, match="7 samples do not fill a batch of 4 on 2 ranks"):
        shards(2, 7, 4, drop_last=True)


def test_a_resume_with_fewer_samples_left_than_ranks_repeats_some_and_says_so() -> None:
    loaders = shards(4, 12, 3)
    for loader in loaders:
        loader.load_state_dict({**loader.state_dict(), "position": 10})
    with pytest.warns(UserWarning, match="2 sample"):
        assert [taken(loader) for loader in loaders] == [[[10]], [[11]], [[10]], [[11]]]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 2}, "version 2"),
        ({"position": None}, "no usable position"),
        ({"epoch": -1}, "no usable epoch"),
        ({"samples": 11}, "other data"),
        ({"position": 13}, "other data"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change: dict[str, object], says: str) -> None:
    (loader,) = shards(1, 12)
    with pytest.raises(TopoutError, match=says):
        loader.load_state_dict({**loader.state_dict(), **change})


class KeepsIterator(DataLoader):
    """As in some well-known training scripts: workers are kept alive by an iterator made once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.iterator = super().__iter__()

    def __iter__(self) -> Iterator[Any]:
        return self.iterator


class Doubles(DataLoader):
    def __iter__(self) -> Iterator[Any]:
        return (2 * batch for batch in super().__iter__())


def test_a_loader_class_of_the_script_is_kept_or_refused_never_ignored() -> None:
    loader = shard(Doubles(range(6), 3), alone())
    assert isinstance(loader, Doubles) and taken(loader) == [[0, 2, 4], [6, 8, 10]]
    assert loader.state_dict()["epoch"] == 1
    with pytest.raises(TopoutError, match="KeepsIterator does not ask"):
        next(iter(shard(KeepsIterator(range(6), 3), alone())))


def test_order_is_kept_where_positions_are_counted() -> None:
    with pytest.warns(UserWarning, match="in_order"):
        assert shard(DataLoader(range(6), num_workers=1, in_order=False), alone()).in_order
