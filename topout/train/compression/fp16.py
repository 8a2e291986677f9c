"""Gradients as float16: half the bytes, 11 bits of mantissa, nothing above 65504 and little below 6e-8.

For training with a GradScaler, which keeps gradients in that range. Not without one: small gradients vanish and large
ones become infinite; `bf16` does neither.
"""

import torch

from topout.train.compression.cast import Cast


class Fp16(Cast):
    dtype = torch.float16
