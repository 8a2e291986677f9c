"""Counter-based random numbers: what a sample draws is a pure function of (seed, epoch, position, number of the draw).

Threads, ranks, batch sizes and resumes therefore cannot change an augmentation, and the C pipeline draws the same
numbers as the Python one. All arithmetic is modulo 2**64; `f` is the finaliser of splitmix64 and G its increment:

    f(z):  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;  z = (z ^ z >> 27) * 0x94D049BB133111EB;  return z ^ z >> 31
    key(seed, epoch, position) = f(f(f(seed + G) + epoch + G) + position + G)
    u(key, k) = (f(key + (k + 1) * G) >> 11) * 2**-53                                        in [0, 1)

Positions from 2**63 on belong to no sample; each stands for a purpose of its own (`ORDER`, `MIXTURE`, ...). Not for
secrets. `tests/epoch/random_vectors.json` holds values to check an implementation in another language against.
"""

import numpy as np
import numpy.typing as npt

Uint64s = npt.NDArray[np.uint64]

G = 0x9E3779B97F4A7C15
MASK = 2**64 - 1

ORDER = 2**63
"""The position whose key shuffles an epoch."""
MIXTURE = 2**63 + 1
"""The position whose key places packs in the blocks of a mixture."""

CROP_TRY = 0
"""Try t of a random resized crop draws its area with number 2 t and its ratio with number 2 t + 1; t is 0 to 9."""
CROP_TOP = 20
CROP_LEFT = 21
FLIP = 22
ROTATION = 23
JITTER_ORDER = 24
"""Four numbers; their ascending order is the order of brightness, contrast, saturation and hue."""
JITTER_FACTOR = 28
"""Four numbers: the factors of brightness, contrast, saturation and hue."""
BATCH = 64
"""First number of what a whole batch draws once, with the key of its first position (mix-up, cut-mix)."""

_SHIFT_30, _SHIFT_27, _SHIFT_31, _SHIFT_11 = (np.uint64(shift) for shift in (30, 27, 31, 11))
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def finalise(values: Uint64s) -> Uint64s:
    """`f` of an array; the argument is left alone."""
    mixed = values >> _SHIFT_30
    mixed ^= values
    mixed *= _FIRST
    mixed ^= mixed >> _SHIFT_27
    mixed *= _SECOND
    mixed ^= mixed >> _SHIFT_31
    return mixed


def finalise_one(value: int) -> int:
    value &= MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    return value ^ value >> 31


def key(seed: int, epoch: int, position: int) -> int:
    return finalise_one(_epoch_key(seed, epoch) + position + G)


def keys(seed: int, epoch: int, positions: npt.NDArray[np.int64]) -> Uint64s:
    """The keys of many positions; none may be negative."""
    return finalise(positions.astype(np.uint64) + np.uint64((_epoch_key(seed, epoch) + G) & MASK))


def uniform(sample_key: int, number: int) -> float:
    """Draw `number` of a sample, in [0, 1)."""
    return (finalise_one(sample_key + (number + 1) * G) >> 11) * 2.0**-53


def uniforms(sample_keys: Uint64s, number: int) -> npt.NDArray[np.float64]:
    """Draw `number` of many samples."""
    bits = finalise(sample_keys + np.uint64((number + 1) * G & MASK))
    return (bits >> _SHIFT_11).astype(np.float64) * 2.0**-53


def _epoch_key(seed: int, epoch: int) -> int:
    return finalise_one(finalise_one(seed + G) + epoch + G)
