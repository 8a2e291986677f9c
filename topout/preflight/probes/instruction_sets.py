"""The same kernels with narrower instructions, each in a process of its own: does AVX-512 pay here, or AVX2?

On parts with one 512-bit unit, or that lower their clock for it, the narrower one may win. The libraries choose once,
when they are loaded, so every choice needs a fresh process: `python -m topout.preflight.probes.instruction_sets`.
"""

import os
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from topout.preflight.facts import Kernel
from topout.preflight.probes.kernels import CPU_PRODUCT, FORCED, SWEPT_CONVOLUTIONS, Bench

_VARIABLES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
CHOICES = {"avx2": ("avx2", "AVX2", "AVX2"), "avx512": ("avx512", "AVX512_CORE", "AVX512")}
"""Name -> the values of `_VARIABLES`."""
_LIMIT_S = 40.0


def compare_instruction_sets(flags: Sequence[str]) -> tuple[Kernel, ...]:
    """A product and a convolution under each choice; empty where there is nothing to choose."""
    if "avx512f" not in flags:
        return ()
    found: list[Kernel] = []
    for name, values in CHOICES.items():
        done = subprocess.run(
            [sys.executable, "-P", "-m", "topout.preflight.probes.instruction_sets"],
            env={**os.environ, **dict(zip(_VARIABLES, values, strict=True)), FORCED: name},
            capture_output=True,
            timeout=_LIMIT_S,
            check=True,
        )
        found += msgspec.json.decode(done.stdout, type=list[Kernel])
    return tuple(found)


def main() -> None:
    import torch

    bench = Bench(torch, "cpu")
    kernels = [bench.product(CPU_PRODUCT, "float32"), bench.convolution(*SWEPT_CONVOLUTIONS[0])]
    sys.stdout.buffer.write(msgspec.json.encode(kernels))


if __name__ == "__main__":
    main()
