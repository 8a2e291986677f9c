"""Loaders that are dealt out one after another have orders of their own, but where a script keeps them in step."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler

from tests.train.test_sharding import at, ranks_that_agree, taken  # noqa: F401  (a fixture)
from topout.train.context import Context
from topout.train.dealing import Dealing, DealtLoaders, seed_of
from topout.train.place import Place, alone
from topout.train.sharding import shard

NUM = 24


class Noisy(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return NUM

    def __getitem__(self, number: int) -> Any:
        return number, torch.rand(())


def shuffled(**options: Any) -> DataLoader:
    return DataLoader(range(NUM), 4, **{"shuffle": True, **options})


def dealt(*loaders: DataLoader, place: Place | None = None, dealing: Dealing | None = None) -> list[DataLoader]:
    dealing = dealing or Dealing()
    return [dealing.shard(loader, place or at(0, 1), seed=7) for loader in loaders]


def test_two_loaders_over_equally_many_samples_pair_none_with_itself_for_ever() -> None:
    first, second = dealt(shuffled(), shuffled())
    for _ in range(3):
        assert taken(first) != taken(second)


def test_the_first_loader_has_the_seed_that_was_given() -> None:
    (only,) = dealt(shuffled())
    assert taken(only) == taken(shard(shuffled(), at(0, 1), seed=7))
    assert [seed_of(7, number) == 7 for number in range(3)] == [True, False, False]


def test_workers_of_two_loaders_draw_other_numbers() -> None:
    first, second = dealt(*(DataLoader(Noisy(), 4, num_workers=1) for _ in range(2)))
    for (numbers, draws), (others, other_draws) in zip(first, second, strict=True):
        assert numbers.tolist() == others.tolist()
        assert draws.tolist() != other_draws.tolist()


@pytest.mark.parametrize("sampler", [None, lambda: RandomSampler(range(NUM), num_samples=8)])
def test_one_made_anew_for_each_epoch_has_another_order_each_time(sampler: Any) -> None:
    dealing = Dealing()
    made = [shuffled() if sampler is None else DataLoader(range(NUM), 4, sampler=sampler()) for _ in range(3)]
    orders = [taken(dealt(one, dealing=dealing)[0]) for one in made]
    assert len({str(order) for order in orders}) == 3


def test_ranks_share_each_loaders_order() -> None:
    orders = [[taken(one) for one in dealt(shuffled(), shuffled(), place=at(rank, 2))] for rank in range(2)]
    for number in range(2):
        assert sorted(sample for rank in orders for batch in rank[number] for sample in batch) == list(range(NUM))


def generated(seed: int = 3) -> DataLoader:
    return shuffled(generator=torch.Generator().manual_seed(seed))


def distributed(seed: int = 0) -> DataLoader:
    sampler = DistributedSampler(range(NUM), num_replicas=1, rank=0, seed=seed)
    return DataLoader(range(NUM), 4, sampler=sampler)


@pytest.mark.parametrize("make", [generated, distributed])
def test_loaders_that_torch_would_keep_in_step_stay_in_step(make: Any) -> None:
    _, first, second, other = dealt(shuffled(), make(), make(), make(9))
    for _ in range(2):
        order = taken(first)
        assert order == taken(second)
        assert order != taken(other)


def test_loaders_of_one_generator_draw_one_after_the_other() -> None:
    generator = torch.Generator().manual_seed(3)
    first, second = dealt(shuffled(generator=generator), shuffled(generator=generator))
    assert taken(first) != taken(second)


def test_one_made_anew_after_a_batch_is_not_in_step_with_the_one_before() -> None:
    dealing = Dealing()
    orders = [taken(dealt(distributed(), dealing=dealing)[0]) for _ in range(3)]
    assert len({str(order) for order in orders}) == 3


def test_what_is_not_dealt_out_does_not_count() -> None:
    class Stream(IterableDataset):
        def __iter__(self) -> Any:
            return iter(range(4))

    dealing, place = Dealing(), alone(torch.device("cpu"))
    (loader,) = dealt(shuffled(), dealing=dealing)
    assert dealing.shard(loader, place, seed=7) is loader
    dealing.shard(DataLoader(Stream(), 2), place, seed=7)
    dealing.shard(DataLoader(range(4), sampler=SequentialSampler(range(4))), place, seed=7, own_share=True)
    assert dealing.num_dealt == 1


def test_a_position_brings_its_seed_along() -> None:
    _, second = dealt(shuffled(), shuffled())
    taken(second)
    (resumed,) = dealt(shuffled())
    resumed.load_state_dict(second.state_dict())
    assert taken(resumed) == taken(second)


def test_a_resumed_run_does_not_begin_again_with_the_orders_of_before(capsys: pytest.CaptureFixture[str]) -> None:
    place = at(0, 1)
    before = Dealing()
    dealt(shuffled(), dealing=before)
    kept = DealtLoaders(before, place)
    kept.state_dict()
    assert not capsys.readouterr().err
    orders = [taken(dealt(shuffled(), dealing=before)[0]) for _ in range(2)]
    state = kept.state_dict(), kept.state_dict()
    assert capsys.readouterr().err.count("a loader was wrapped after ctx.checkpoint") == 1

    after = Dealing()
    dealt(shuffled(), dealing=after)
    resumed = DealtLoaders(after, place)
    resumed.load_state_dict(state[1])
    (anew,), (uninterrupted,) = dealt(shuffled(), dealing=after), dealt(shuffled(), dealing=before)
    order = taken(anew)
    assert order not in orders
    assert order == taken(uninterrupted)


def test_wrap_counts_and_checkpoints_keep_the_count(tmp_path: Any) -> None:
    def begun() -> tuple[Context, Any, Any, DataLoader]:
        ctx = Context(alone(torch.device("cpu")), seed=7)
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model, optimizer, loader = ctx.wrap(model, optimizer, shuffled())
        return ctx, model, optimizer, loader

    ctx, model, optimizer, loader = begun()
    checkpoints = ctx.checkpoint(tmp_path, every=1)
    _, second = ctx.wrap(model, None, shuffled())
    assert taken(loader) != taken(second)
    optimizer.step()
    checkpoints.step()
    ctx.close()

    resumed, model, _, _ = begun()
    assert resumed.checkpoint(tmp_path, every=1).num_steps == 1
    _, third = resumed.wrap(model, None, shuffled())
    assert third.state_dict()["seed"] == seed_of(7, 2)
    resumed.close()


def test_a_checkpoint_from_before_loaders_were_counted_goes_on(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from topout.train.checkpoint import Checkpoints

    place = alone(torch.device("cpu"))
    model = torch.nn.Linear(1, 1)
    older = Checkpoints(tmp_path, state={"model": model}, place=place)
    older.save()
    older.close()
    ctx = Context(place)
    ctx.wrap(model)
    assert ctx.checkpoint(tmp_path).restored is not None
    ctx.close()
    assert "loaders" not in capsys.readouterr().err
