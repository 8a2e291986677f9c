"""The random numbers that a rank would draw next: of Python, numpy, torch and its device.

Not for another number of ranks: there a rank has no predecessor, and `reseeded` gives it numbers of its own.
"""

import random
from typing import Any

import numpy as np
import torch

from topout.epoch.randomness import key


def captured(device: torch.device) -> dict[str, Any]:
    """As plain values; `tree` writes them out."""
    name, words, position, has_gauss, gauss = np.random.get_state(legacy=True)
    state = {
        "seed": torch.initial_seed(),
        "python": random.getstate(),
        "numpy": [name, np.asarray(words).tolist(), position, has_gauss, gauss],
        "torch": _as_bytes(torch.get_rng_state()),
    }
    if device.type == "cuda":
        state["cuda"] = _as_bytes(torch.cuda.get_rng_state(device))
    return state


def restore(state: dict[str, Any], device: torch.device) -> None:
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, numbers, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(numbers, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(_as_tensor(state["torch"]))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(_as_tensor(state["cuda"]), device)


def reseeded(seed: int, step: int, rank: int) -> None:
    """Numbers that depend on the run's seed, the step and the rank alone, and differ between ranks."""
    own = key(seed, step, rank)
    random.seed(own)
    np.random.seed(own % 2**32)
    torch.manual_seed(own % 2**63)


def _as_bytes(state: torch.Tensor) -> bytes:
    return bytes(state.cpu().numpy())


def _as_tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
