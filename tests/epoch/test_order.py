"""An order is a permutation, another one for each seed and epoch, as even as a fair shuffle, and can start anywhere."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topout.epoch.order import BlockShuffled, Sequential, order, permute
from topout.feed.curriculum import Curriculum, easiest_first
from topout.feed.mixing import BLOCK, Mixture
from topout.schema.errors import TopoutError

SEEDS = st.integers(-(2**63), 2**64 - 1)


@given(seed=SEEDS, epoch=st.integers(0, 2**31), num=st.integers(1, 3_000))
def test_every_sample_comes_exactly_once(seed: int, epoch: int, num: int) -> None:
    assert np.sort(order(seed, epoch, num).at(np.arange(num))).tolist() == list(range(num))


@given(seed=SEEDS, num=st.integers(2, 10**12), data=st.data())
def test_any_position_is_found_without_those_before_it(seed: int, num: int, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, num - 1), min_size=1, max_size=20, unique=True))
    together = order(seed, 1, num).at(np.array(positions))
    alone = [int(order(seed, 1, num).at(np.array([position]))[0]) for position in positions]
    assert together.tolist() == alone
    assert len(set(alone)) == len(positions)
    assert min(alone) >= 0 and max(alone) < num


def test_seeds_and_epochs_give_other_orders() -> None:
    positions = np.arange(1_000)
    first = order(0, 0, 1_000).at(positions)
    for other in (order(0, 1, 1_000), order(1, 0, 1_000)):
        # two fair shuffles agree in one place on average
        assert np.count_nonzero(other.at(positions) == first) < 10


@pytest.mark.parametrize("num", [2, 3, 7, 10, 16])
def test_every_sample_is_equally_often_at_every_place(num: int) -> None:
    epochs = 4_000
    places = np.array([order(11, epoch, num).at(np.arange(num)) for epoch in range(epochs)])
    expected = epochs / num
    for place in range(num):
        counts = np.bincount(places[:, place], minlength=num)
        chi_square = float(((counts - expected) ** 2 / expected).sum())
        # 99.99 % of num - 1 degrees of freedom, after Wilson and Hilferty
        freedom = num - 1
        limit = freedom * (1 - 2 / (9 * freedom) + 3.72 * (2 / (9 * freedom)) ** 0.5) ** 3
        assert chi_square < limit


def test_neighbours_are_strangers() -> None:
    num = 100_000
    samples = order(3, 0, num).at(np.arange(num))
    steps = np.diff(samples) % num
    counts = np.histogram(steps, bins=50, range=(0, num))[0]
    chi_square = float(((counts - num / 50) ** 2 / (num / 50)).sum())
    assert chi_square < 85.4  # 99.9 % of 49 degrees of freedom
    assert abs(np.corrcoef(samples[:-1], samples[1:])[0, 1]) < 0.015
    assert abs(np.corrcoef(samples, np.arange(num))[0, 1]) < 0.015


def test_no_order_is_larger_than_the_arithmetic_holds() -> None:
    assert 0 <= int(permute([2**48 - 1], 2**48, 1)[0]) < 2**48
    with pytest.raises(ValueError):
        permute([0], 2**48 + 1, 1)


def test_a_sequential_order_is_none() -> None:
    assert Sequential(num_positions=5).at(np.array([4, 0, 2])).tolist() == [4, 0, 2]


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    window=st.integers(1, 5),
    epoch=st.integers(0, 5),
)
def test_a_block_shuffle_is_a_permutation_within_windows_of_shards(sizes: list[int], window: int, epoch: int) -> None:
    starts = np.concatenate([[0], np.cumsum(sizes)])
    blocks = BlockShuffled(seed=2, epoch=epoch, starts=starts.tolist(), window=window)
    num = int(starts[-1])
    samples = blocks.at(np.arange(num))
    assert np.sort(samples).tolist() == list(range(num))
    shard = np.searchsorted(starts, samples, side="right") - 1
    # a shard's samples lie within one window, so no more than `window` shards are ever open at once
    shards_in_order = list(dict.fromkeys(shard.tolist()))
    nonempty = {number for number, size in enumerate(sizes) if size}
    assert set(shards_in_order) == nonempty
    for number in nonempty:
        own = np.flatnonzero(shard == number)
        assert len(set(shard[own[0] : own[-1] + 1].tolist())) <= window


@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=5),
    epoch=st.integers(0, 4),
    data=st.data(),
)
def test_a_mixture_meets_its_weights_within_one_sample(sizes: list[int], epoch: int, data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.integers(1, 9), min_size=len(sizes), max_size=len(sizes)))
    length = 4 * BLOCK
    mixture = Mixture(seed=1, epoch=epoch, sizes=sizes, weights=weights, length=length)
    ends = np.cumsum(sizes)
    pack = np.searchsorted(ends, mixture.at(np.arange(length)), side="right")
    for num_blocks in (1, 2, 4):
        counts = np.bincount(pack[: num_blocks * BLOCK], minlength=len(sizes))
        # the counts run on from the epochs before, whose remainder may add a second sample
        assert np.abs(counts - np.array(weights) / sum(weights) * num_blocks * BLOCK).max() <= (
            1.01 if not epoch else 2.01
        )


def test_a_small_pack_repeats_only_after_all_of_its_samples() -> None:
    mixture = Mixture(seed=0, epoch=0, sizes=[1_000, 10], weights=[0.5, 0.5])
    samples = mixture.at(np.arange(1_010))
    small = samples[samples >= 1_000]
    counts = np.bincount(small - 1_000, minlength=10)
    assert counts.max() - counts.min() <= 1 + BLOCK // 2 // 10
    passes = Mixture(seed=0, epoch=0, sizes=[6, 3], weights=[2, 1], length=BLOCK * 3)
    # 768 places: 512 of pack 0 (85 passes and 2 more), 256 of pack 1 (85 passes and 1 more)
    counts = np.bincount(passes.at(np.arange(BLOCK * 3)), minlength=9)
    assert set(counts.tolist()) <= {85, 86}


def test_a_large_pack_goes_on_in_the_next_epoch_where_it_stopped() -> None:
    parts = [Mixture(seed=4, epoch=epoch, sizes=[2 * BLOCK, 8], weights=[1, 1], length=2 * BLOCK) for epoch in (0, 1)]
    seen = np.concatenate([part.at(np.arange(2 * BLOCK)) for part in parts])
    large = seen[seen < 2 * BLOCK]
    assert np.sort(large).tolist() == list(range(2 * BLOCK))


@pytest.mark.parametrize("weights", [[1], [1, -1], [0, 0], [float("nan"), 1], [float("inf"), 1]])
def test_weights_that_cannot_mix_are_refused(weights: list[float]) -> None:
    with pytest.raises(TopoutError, match="cannot mix 2 packs"):
        Mixture(seed=0, epoch=0, sizes=[3, 3], weights=weights)


def test_a_weight_of_zero_leaves_a_pack_out() -> None:
    assert Mixture(seed=0, epoch=0, sizes=[5, 5, 0], weights=[0, 1, 0]).at(np.arange(10)).min() == 5


def test_a_curriculum_begins_sorted_and_ends_shuffled() -> None:
    difficulty = np.array([0.5, 0.1, 0.9, 0.3])
    ranking = easiest_first(difficulty)
    assert ranking.tolist() == [1, 3, 0, 2]
    assert easiest_first(difficulty, highest_first=True).tolist() == [2, 0, 3, 1]
    assert Curriculum(seed=0, epoch=0, ranking=ranking, pace=4).at(np.arange(4)).tolist() == [1, 3, 0, 2]
    half = Curriculum(seed=0, epoch=2, ranking=np.arange(1_000), pace=4).at(np.arange(1_000))
    assert half[:500].max() == 499 and half[500:].min() == 500 and half[:500].tolist() != list(range(500))
    whole = Curriculum(seed=0, epoch=9, ranking=np.arange(1_000), pace=4).at(np.arange(1_000))
    assert abs(np.corrcoef(whole, np.arange(1_000))[0, 1]) < 0.15


@given(num=st.integers(1, 500), epoch=st.integers(0, 12), pace=st.floats(1, 10))
def test_a_curriculum_shows_every_sample_once_an_epoch(num: int, epoch: int, pace: float) -> None:
    curriculum = Curriculum(seed=0, epoch=epoch, ranking=np.arange(num)[::-1].copy(), pace=pace)
    assert np.sort(curriculum.at(np.arange(num))).tolist() == list(range(num))
