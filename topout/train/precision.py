"""In which numbers a step computes: autocast, the loss scaler that fp16 needs, TF32 for what stays in fp32.

    fp32    as the model is
    bf16    matrix products and convolutions in bfloat16; the range of fp32, so no scaler
    fp16    the same in float16, whose small gradients vanish unless the loss is scaled up
    auto    bf16 where the GPU computes in it, fp16 on older GPUs, fp32 elsewhere

Parameters, optimizer state and sums over a batch stay in fp32. Not for models that were cast themselves
(`model.half()`): autocast needs fp32 parameters to step on.
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch

from topout.schema.errors import TopoutError

PRECISIONS = ("auto", "fp32", "bf16", "fp16")
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def resolved(precision: str, device: torch.device) -> str:
    """`precision` with `auto` decided for this device."""
    if precision not in PRECISIONS:
        raise TopoutError(
            f"There is no precision {precision!r}.",
            why="It decides in which numbers matrix products and convolutions are computed.",
            do=f"one of {', '.join(PRECISIONS)}",
        )
    if precision != "auto":
        return precision
    if device.type != "cuda":
        return "fp32"
    # before compute capability 8.0 bfloat16 is emulated, and slower than fp32
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


def warn_if_emulated(precision: str, device: torch.device) -> None:
    """Says once that this CPU has no instructions for bfloat16: a convolution then takes a hundred times as long."""
    if precision == "bf16" and device.type == "cpu" and not computes_in_bf16():
        _say_emulated()


def computes_in_bf16() -> bool:
    """Whether torch's kernels for this CPU do."""
    return bool(torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


@cache
def _say_emulated() -> None:
    sys.stderr.write("topout: this CPU computes bf16 by emulation, far slower than fp32; choose the precision fp32\n")


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """For the forward pass and the loss; backward follows the types of forward by itself."""
    dtype = _DTYPES.get(precision)
    if dtype is None:
        return nullcontext()
    context: AbstractContextManager[Any] = torch.autocast(device.type, dtype=dtype)
    return context


def scaler(precision: str, device: torch.device) -> Any:
    """A GradScaler; in other precisions than fp16 one that does nothing and has an empty state."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")


def set_tf32(is_allowed: bool) -> None:
    """Whether fp32 products and convolutions on GPUs may round their inputs to 10 bits of mantissa, for this process.

    By the older calls on purpose: they keep the newer `fp32_precision` in step, while setting the newer one makes
    `torch.get_float32_matmul_precision()`, which the compiler asks for, raise in torch 2.11 to 2.13.
    """
    torch.set_float32_matmul_precision("high" if is_allowed else "highest")
    torch.backends.cudnn.allow_tf32 = is_allowed
