"""Ranks share each global batch without overlap, whatever becomes of the last one, and a resume loses nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topout.epoch.order import order
from topout.epoch.partition import LAST, Partition, rank_and_world
from topout.feed.position import Position, read_state
from topout.schema.errors import TopoutError

WORLDS = st.integers(1, 9)
BATCHES = st.integers(1, 8)


def everyone(num: int, batch_size: int, world_size: int, last: str, start: int = 0) -> list[Partition]:
    return [
        Partition(num_positions=num, batch_size=batch_size, rank=rank, world_size=world_size, last=last, start=start)
        for rank in range(world_size)
    ]


def test_ranks_take_turns_in_each_global_batch() -> None:
    first, second = everyone(10, 2, 2, "drop")
    assert [first.batch(0).tolist(), second.batch(0).tolist()] == [[0, 2], [1, 3]]
    assert [first.batch(1).tolist(), second.batch(1).tolist()] == [[4, 6], [5, 7]]
    assert len(first) == len(second) == 2


def test_pad_fills_the_last_batch_and_exact_leaves_it_uneven() -> None:
    padded = everyone(9, 2, 2, "pad")
    assert [part.batch(2).tolist() for part in padded] == [[8, 10], [9, 11]]  # modulo 9: 8, 1 and 0, 2
    exact = everyone(9, 2, 2, "exact")
    assert [len(part) for part in exact] == [3, 2]
    assert exact[0].batch(2).tolist() == [8]


@given(num=st.integers(0, 200), batch_size=BATCHES, world_size=WORLDS, last=st.sampled_from(LAST), data=st.data())
def test_no_position_twice_and_none_missing(
    num: int, batch_size: int, world_size: int, last: str, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, num))
    parts = everyone(num, batch_size, world_size, last, start)
    taken = np.concatenate([np.empty(0, np.int64), *(part.batch(n) for part in parts for n in range(len(part)))])
    if last == "even":
        taken = np.unique(taken)  # when it repeats, and when not, see below
    assert len(set(taken.tolist())) == len(taken)
    own = np.sort(taken[taken < num])
    if last == "drop":
        assert own.tolist() == list(
            range(start, start + (num - start) // (batch_size * world_size) * batch_size * world_size)
        )
        assert all(len(part.batch(n)) == batch_size for part in parts for n in range(len(part)))
    else:
        assert own.tolist() == list(range(start, num))
    if last == "pad":
        assert all(len(part.batch(n)) == batch_size for part in parts for n in range(len(part)))
        assert len({len(part) for part in parts}) == 1
    if last == "exact":
        assert all(1 <= len(part.batch(n)) <= batch_size for part in parts for n in range(len(part)))


def test_even_halves_the_last_two_batches_rather_than_leave_one_with_a_single_sample() -> None:
    # 9 samples in fours: 4, then the 5 that are left as 2 and 3
    (alone,) = everyone(9, 4, 1, "even")
    assert [alone.batch(n).tolist() for n in range(len(alone))] == [[0, 1, 2, 3], [4, 5], [6, 7, 8]]
    assert [alone.position_after(n) for n in range(4)] == [0, 4, 6, 9]
    # 10 samples in fours on 2 ranks: a rest of 2 would be one a rank
    assert [[part.batch(n).tolist() for n in range(len(part))] for part in everyone(10, 4, 2, "even")] == [
        [[0, 2], [4, 6, 8]],
        [[1, 3], [5, 7, 9]],
    ]
    # a rest of 4 is two a rank: left as it is
    assert [part.batch(1).tolist() for part in everyone(12, 4, 2, "even")] == [[8, 10], [9, 11]]


def test_even_repeats_only_where_a_rank_would_go_without() -> None:
    singles = everyone(7, 1, 4, "even")
    assert [part.batch(1).tolist() for part in singles] == [[4], [5], [6], [4]]
    assert [part.sharers(1) for part in singles] == [(0, 2), (0, 1), (0, 1), (1, 2)]
    assert [part.sharers(0) for part in singles] == [(0, 1)] * 4


@given(num=st.integers(0, 200), batch_size=BATCHES, world_size=WORLDS, data=st.data())
def test_even_gives_every_rank_as_many_batches_and_every_position_once(
    num: int, batch_size: int, world_size: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, num))
    parts = everyone(num, batch_size, world_size, "even", start)
    (length,) = {len(part) for part in parts}
    assert length == -(-(num - start) // (batch_size * world_size))
    after = start
    for number in range(length):
        sizes = [len(part.batch(number)) for part in parts]
        assert 1 <= min(sizes) and max(sizes) <= min(batch_size, min(sizes) + 1)
        is_scanty = number > 0 and batch_size >= 4
        assert min(sizes) >= 2 or not is_scanty
        positions = sorted(np.concatenate([part.batch(number) for part in parts]).tolist())
        end = parts[0].position_after(number + 1)
        assert sorted(set(positions)) == list(range(after, end))
        repeats = len(positions) - (end - after)
        assert repeats == 0 or (end - after < world_size and (batch_size == 1 or length == 1))
        after = end
    assert after == num


@given(num=st.integers(1, 200), batch_size=BATCHES, world_size=WORLDS, data=st.data())
def test_even_goes_on_after_a_resume_as_if_there_had_been_none(
    num: int, batch_size: int, world_size: int, data: st.DataObject
) -> None:
    for whole in everyone(num, batch_size, world_size, "even"):
        done = data.draw(st.integers(0, len(whole)))
        (rest,) = (
            part
            for part in everyone(num, batch_size, world_size, "even", whole.position_after(done))
            if part.rank == whole.rank
        )
        assert [rest.batch(n).tolist() for n in range(len(rest))] == [
            whole.batch(n).tolist() for n in range(done, len(whole))
        ]


@given(
    num=st.integers(1, 300),
    seed=st.integers(0, 100),
    legs=st.lists(st.tuples(WORLDS, BATCHES, st.integers(0, 6)), min_size=1, max_size=8),
)
def test_each_sample_comes_once_through_any_number_of_resumes(
    num: int, seed: int, legs: list[tuple[int, int, int]]
) -> None:
    """Each leg runs some batches in a world of its own and leaves a state; the last leg runs to the end."""
    state = Position(seed=seed, epoch=3).state()
    seen: list[int] = []
    for number, (world_size, batch_size, num_batches) in enumerate(legs):
        at = read_state(state, (), num)
        is_last_leg = number == len(legs) - 1
        parts = everyone(num, batch_size, world_size, "exact" if is_last_leg else "drop", at.position)
        for part in parts:
            for batch in range(len(part) if is_last_leg else min(num_batches, len(part))):
                seen.extend(order(at.seed, at.epoch, num).at(part.batch(batch)).tolist())
        done = min(num_batches, len(parts[0]))
        state = Position(seed=seed, epoch=3, position=parts[0].position_after(done)).state()
    assert sorted(seen) == list(range(num))


def test_the_global_sequence_does_not_depend_on_the_world() -> None:
    def sequence(world_size: int, batch_size: int) -> list[set[int]]:
        parts = everyone(48, batch_size, world_size, "drop")
        return [set(np.concatenate([part.batch(n) for part in parts]).tolist()) for n in range(len(parts[0]))]

    assert sequence(1, 12) == sequence(2, 6) == sequence(4, 3) == sequence(12, 1)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [({"batch_size": 0}, "batch size"), ({"rank": 2, "world_size": 2}, "Rank 2 of 2"), ({"last": "some"}, "'some'")],
)
def test_impossible_partitions_are_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(TopoutError, match=says):
        Partition(**{"num_positions": 10, "batch_size": 2, **wrong})


def test_rank_and_world_come_from_the_launcher_unless_given() -> None:
    assert rank_and_world({}, None, None) == (0, 1)
    assert rank_and_world({"RANK": "3", "WORLD_SIZE": "8"}, None, None) == (3, 8)
    assert rank_and_world({"RANK": "3", "WORLD_SIZE": "8"}, 1, 2) == (1, 2)
    with pytest.raises(TopoutError, match="Only one"):
        rank_and_world({}, 1, None)
    with pytest.raises(TopoutError, match="no numbers"):
        rank_and_world({"RANK": "x", "WORLD_SIZE": "8"}, None, None)


def test_a_process_group_knows_better_than_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts that spawn their ranks themselves join a group and set no variables."""
    import torch.distributed

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    assert rank_and_world({}, None, None) == (2, 4)
    assert rank_and_world({"RANK": "0", "WORLD_SIZE": "1"}, None, None) == (2, 4)
    assert rank_and_world({}, 0, 1) == (0, 1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 2}, "version 2"),
        ({"position": None}, "no usable position"),
        ({"position": 11}, "no usable"),
        ({"epoch": -1}, "no usable"),
        ({"data": ["another"]}, "other data"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change: dict[str, object], says: str) -> None:
    good = Position(seed=1, epoch=2, position=3, data=("pack",)).state()
    assert read_state(good, ("pack",), 10) == Position(seed=1, epoch=2, position=3, data=("pack",))
    with pytest.raises(TopoutError, match=says):
        read_state({**good, **change}, ("pack",), 10)
