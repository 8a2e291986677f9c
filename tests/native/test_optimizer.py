"""The compiled step gives the same results on every processor, and touches nothing outside of its tensors."""

import numpy as np
import pytest

from topout.native import optimizer as native
from topout.native.bindings import Library
from topout.native.build import compile_library, usable_variants


@pytest.fixture(scope="module")
def variants(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lib")
    return [Library(compile_library(name, folder)) for name in usable_variants()]


def stepped(library, method, num, *, passes=native.BOTH_PASSES, num_threads=1, offset=0):
    """Weights and state after a step over `num` elements that lie between guards; and the sums."""
    chance = np.random.default_rng(num)
    arrays = [chance.normal(0, 0.1, num + 16 + offset).astype(np.float32) for _ in range(4)]
    arrays[3] **= 2
    before = [array.copy() for array in arrays]
    tensors = np.zeros(1, native.TENSOR)
    at = slice(8 + offset, 8 + offset + num)
    for name, array in zip(("weights", "gradient", "first", "second"), arrays, strict=True):
        tensors[name] = array[8 + offset :].ctypes.data
    tensors["num"], tensors["decay"], tensors["adapts"], tensors["corrections"] = num, 1e-3, 1, (2.0, 3.0)
    rule = native.Rule(method, passes, 0, num_threads, 0.5, 0.02, 1e-6, 0.9, 0.999)
    assert native.take_step(library, rule, tensors) == native.ALL_FINITE
    for array, was in zip(arrays, before, strict=True):
        assert np.array_equal(array[: at.start], was[: at.start]) and np.array_equal(array[at.stop :], was[at.stop :])
    assert np.array_equal(arrays[1], before[1])
    return [array[at].copy() for array in arrays], tensors["sums"][0].tolist()


@pytest.mark.parametrize("method", [native.LARS, native.LAMB])
@pytest.mark.parametrize("num", [0, 1, 15, 16, 17, 511, 512, 513, 65_537, 131_073, 300_001])
def test_every_variant_and_number_of_threads_gives_the_same_bits(variants, method, num):
    first, sums = stepped(variants[0], method, num, offset=1)
    for library in variants:
        for num_threads in (1, 3):
            found, its_sums = stepped(library, method, num, num_threads=num_threads, offset=1)
            assert its_sums == sums
            assert all(np.array_equal(a, b) for a, b in zip(found, first, strict=True))


@pytest.mark.parametrize("num", [1, 100, 5_000, 200_000])
def test_sums_are_exact_to_seven_digits(variants, num):
    (weights, gradient, *_), sums = stepped(variants[0], native.LARS, num, passes=native.FIRST_PASS)
    assert sums == pytest.approx([float(np.sum(x.astype(np.float64) ** 2)) for x in (weights, gradient)], rel=1e-7)


def test_a_norm_that_is_not_finite_is_told_by_number(variants):
    weights = [np.ones(64, np.float32) for _ in range(3)]
    state = [np.zeros(64, np.float32) for _ in range(3)]
    gradients = [np.ones(64, np.float32) for _ in range(3)]
    gradients[1][5] = np.inf
    tensors = np.zeros(3, native.TENSOR)
    for number in range(3):
        row = tensors[number]
        row["weights"], row["gradient"] = weights[number].ctypes.data, gradients[number].ctypes.data
        row["first"], row["num"], row["adapts"] = state[number].ctypes.data, 64, 1
    rule = native.Rule(native.LARS, native.BOTH_PASSES, 0, 1, 1.0, 0.5, 0.0, 0.9, 0.0)
    assert native.take_step(variants[0], rule, tensors) == 1
    # the ratio is 0.5 * 8 / 8
    assert [np.unique(w).tolist() for w in weights] == [[0.5], [1.0], [0.5]]
