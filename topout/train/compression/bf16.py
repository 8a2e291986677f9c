"""Gradients as bfloat16: half the bytes, the range of float32, 8 bits of mantissa.

The first to try on a slow link: training that runs in bf16 anyway loses nothing that it had. Not for gradients that are
summed over hundreds of ranks in small differences; see `int8`, which remembers what it rounds off.
"""

import torch

from topout.train.compression.cast import Cast


class Bf16(Cast):
    dtype = torch.bfloat16
