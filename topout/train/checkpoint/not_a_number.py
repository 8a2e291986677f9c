"""Whether a model that is about to be saved is lost: NaN in a parameter that is trained stays there for good.

Looked for in what was staged, by the thread that writes, so training waits for none of it. Without it a training that
has diverged would replace its good checkpoints by whole, checksummed and worthless ones. Not infinities, which masks
may hold, and not buffers or frozen parameters, whose values are the script's own affair.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import torch

from topout.schema.errors import ExitCode, TopoutError
from topout.train.checkpoint.plan import Piece

_AT_ONCE = 1 << 18
"""Elements: what is made of them stays in the caches."""
_BY_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}
_LARGEST_NUMBER = {torch.float16: 0x7C00, torch.bfloat16: 0x7F80}
"""Without the sign; the bits above it are NaN's. NumPy has no bfloat16, and computes with float16 one by one."""


def lost_parameter(image: memoryview, pieces: Sequence[Piece], trained: Collection[str]) -> str | None:
    """The name of the first of them in a rank's file that holds NaN."""
    for piece in pieces:
        if piece.name in trained and _has_nan(image[piece.at : piece.at + piece.num_bytes], piece.dtype):
            return piece.name.partition("/")[2] if piece.name.startswith("@") else piece.name
    return None


def _has_nan(data: memoryview, dtype: torch.dtype) -> bool:
    if dtype in _BY_NUMPY:
        values = np.frombuffer(data, _BY_NUMPY[dtype])
        # the largest of some is NaN where one is, and takes a pass without a copy
        return any(np.isnan(values[at : at + _AT_ONCE].max()) for at in range(0, len(values), _AT_ONCE))
    if dtype in _LARGEST_NUMBER:
        bits = np.frombuffer(data, np.uint16)
        largest = _LARGEST_NUMBER[dtype]
        return any((bits[at : at + _AT_ONCE] & 0x7FFF).max() > largest for at in range(0, len(bits), _AT_ONCE))
    return False


def model_is_lost(name: str, step: int, folder: Path, good_steps: Sequence[int]) -> TopoutError:
    good = f"go on from step {good_steps[-1]}, the newest in {folder}," if good_steps else "begin again"
    return TopoutError(
        f"The model is lost: {name} holds NaN at step {step}.",
        why="A loss or a gradient was not finite in a step before, and no later step takes NaN out of a parameter. "
        "It was not saved, so that good checkpoints stay.",
        do=f"{good} with a lower learning rate or with clipping; torch.autograd.set_detect_anomaly(True) names the "
        "operation",
        exit_code=ExitCode.JOB_FAILED,
    )
