"""Random numbers that are equal on all ranks while a whole loader is gone through; each rank's own are put back after.

A validation loader that shuffles, augmentation and dropout in evaluation draw from torch's numbers, which are each
rank's own once training has begun. Seeded anew for every batch, so ranks agree whatever they drew before. Not for what
is drawn outside of such a loop, nor for Python's and NumPy's numbers, which stay equal by themselves.
"""

from typing import Any

import torch

from topout.epoch.randomness import key

_FIRST_BATCH = 2**63 + 2**32
"""The position whose key seeds what is drawn until the first batch is there; each batch has the next."""


class EqualDraws:
    def __init__(self) -> None:
        self._own: list[tuple[Any, Any]] = []
        """Generators and their states from before; none where ranks draw their own numbers."""
        self._users: set[int] = set()
        self._num_loops = 0

    def next_loop(self) -> int:
        """Of all loops over whole loaders, on all ranks alike."""
        self._num_loops += 1
        return self._num_loops

    def begin(self, user: int, *, seed: int, loop: int, num_taken: int) -> None:
        """Before the next batch of a loop; `user` says who is to end it."""
        self._users.add(user)
        for generator in _generators():
            if not any(generator is held for held, _ in self._own):
                self._own.append((generator, generator.get_state()))
            generator.manual_seed(key(seed, loop, _FIRST_BATCH + num_taken) >> 1)

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
        self._users.clear()


def _generators() -> list[Any]:
    found = [torch.default_generator]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found.append(torch.cuda.default_generators[torch.cuda.current_device()])
    return found
