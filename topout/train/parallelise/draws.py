"""Random numbers that are equal on all ranks while a whole loader is gone through; each rank's own are put back after.

A validation loader that shuffles, augmentation and dropout in evaluation draw from torch's numbers, which are each
rank's own once training has begun, and from Python's and NumPy's, of which a rank with a larger share has drawn more.
Seeded anew for every batch, so ranks agree whatever they drew before. Not for what is drawn outside of such a loop:
there `host_state` of rank 0 is set on all ranks now and then.
"""

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from topout.epoch.randomness import key
from topout.train.sample_order import seed_host

_FIRST_BATCH = 2**63 + 2**32
"""The position whose key seeds what is drawn until the first batch is there; each batch has the next."""
_WORDS = 625
"""Of Python's state, its position among them."""


class EqualDraws:
    def __init__(self) -> None:
        self._own: list[tuple[Any, Any]] = []
        """Generators and their states from before; none where ranks draw their own numbers."""
        self._own_of_host: tuple[Any, Any] | None = None
        """Of Python's and NumPy's."""
        self._users: set[int] = set()
        self._num_loops = 0

    def next_loop(self) -> int:
        """Of all loops over whole loaders, on all ranks alike."""
        self._num_loops += 1
        return self._num_loops

    def begin(self, user: int, *, seed: int, loop: int, num_taken: int) -> None:
        """Before the next batch of a loop; `user` says who is to end it."""
        self._users.add(user)
        number = key(seed, loop, _FIRST_BATCH + num_taken)
        if self._own_of_host is None:
            self._own_of_host = random.getstate(), np.random.get_state()
        seed_host(number)
        for generator in _generators():
            if not any(generator is held for held, _ in self._own):
                self._own.append((generator, generator.get_state()))
            generator.manual_seed(number >> 1)

    def end(self, user: int) -> None:
        """Nothing where another loop goes on."""
        self._users.discard(user)
        if not self._users:
            self.end_all()

    def end_all(self) -> None:
        """Whoever begins again goes on with its own."""
        for generator, state in self._own:
            generator.set_state(state)
        self._own.clear()
        if self._own_of_host is not None:
            random.setstate(self._own_of_host[0])
            np.random.set_state(self._own_of_host[1])
            self._own_of_host = None
        self._users.clear()


def host_state() -> list[float]:
    """Of Python's and NumPy's numbers; their words are exact as floats. Without NumPy's where it is no twister."""
    _, words, normal = random.getstate()
    found = [*map(float, words), math.nan if normal is None else normal]
    numpys = np.random.get_state()
    if isinstance(numpys, tuple):
        found += [*numpys[1].tolist(), *map(float, numpys[2:])]
    return found


def set_host_state(state: Sequence[float]) -> None:
    words, normal, numpys = state[:_WORDS], state[_WORDS], state[_WORDS + 1 :]
    random.setstate((3, tuple(map(int, words)), None if math.isnan(normal) else normal))
    if numpys:
        *key_words, place, has_normal, numpys_normal = numpys
        words_of_key = np.array(key_words, dtype=np.uint32)
        np.random.set_state(("MT19937", words_of_key, int(place), int(has_normal), numpys_normal))


def _generators() -> list[Any]:
    found = [torch.default_generator]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found.append(torch.cuda.default_generators[torch.cuda.current_device()])
    return found
