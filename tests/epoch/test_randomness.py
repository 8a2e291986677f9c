"""Draws are pure functions, the same in Python, in numpy and in the vectors for other languages."""

import json
from pathlib import Path

import numpy as np

from topout.epoch import randomness

VECTORS = Path(__file__).with_name("random_vectors.json")


def test_the_finaliser_is_that_of_splitmix64() -> None:
    # the first outputs of splitmix64 with state 0, as published with its reference implementation
    outputs = [randomness.finalise_one((k + 1) * randomness.G) for k in range(3)]
    assert outputs == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_arrays_and_single_values_agree() -> None:
    positions = np.array([0, 1, 7, 2**40], dtype=np.int64)
    many = randomness.keys(5, 3, positions)
    assert many.tolist() == [randomness.key(5, 3, int(position)) for position in positions]
    for number in (0, 1, 22, 300):
        assert randomness.uniforms(many, number).tolist() == [
            randomness.uniform(int(one), number) for one in many.tolist()
        ]


def test_a_negative_or_huge_seed_is_a_seed_like_any_other() -> None:
    assert randomness.key(-1, 0, 0) == randomness.key(2**64 - 1, 0, 0)
    assert randomness.key(-1, 0, 0) != randomness.key(1, 0, 0)


def test_every_argument_matters() -> None:
    keys = {randomness.key(seed, epoch, position) for seed in range(8) for epoch in range(8) for position in range(8)}
    assert len(keys) == 512


def test_draws_are_uniform() -> None:
    draws = np.concatenate([randomness.uniforms(randomness.keys(1, 2, np.arange(20_000)), k) for k in range(5)])
    counts = np.histogram(draws, bins=20, range=(0, 1))[0]
    chi_square = float(((counts - 5_000) ** 2 / 5_000).sum())
    assert chi_square < 43.8  # 99.9 % of 19 degrees of freedom
    assert 0.0 <= draws.min() and draws.max() < 1.0


def test_the_vectors_are_what_is_computed() -> None:
    for vector in json.loads(VECTORS.read_text())["draws"]:
        key = randomness.key(vector["seed"], vector["epoch"], vector["position"])
        assert f"{key:#018x}" == vector["key"]
        assert [randomness.uniform(key, number) for number in range(4)] == vector["uniforms"]
