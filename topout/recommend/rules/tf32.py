"""Single-precision matrix products do not use TF32.

Why it matters. Since Ampere, NVIDIA GPUs multiply fp32 matrices on tensor cores when their mantissa
may be rounded to 10 bits. PyTorch keeps this off for matrix products unless asked.

How it is measured. The device supports TF32, torch's setting for matrix products is off, and no
autocast was seen. The gain assumes that half of forward and backward can be saved.

What to do. One line before training:

    torch.set_float32_matmul_precision("high")

Not a problem when matrix products must keep all 23 bits, or nearly all of them run in bf16 under
autocast.

Reference: https://pytorch.org/docs/stable/notes/cuda.html#tf32-on-ampere
"""

from topout.schema.finding import Rule
from topout.schema.measures import Environment, Measures, Memory
from topout.schema.shares import has_gpu, share_of

_GPU = Memory(device_total_bytes=80 * 2**30)


def _is_off(measures: Measures) -> bool:
    seen = measures.environment
    return (
        has_gpu(measures) and seen.supports_tf32 is True and seen.uses_tf32 is False and seen.uses_autocast is not True
    )


RULE = Rule(
    code="PR02",
    title="TF32 is not in use",
    when=_is_off,
    because="The device[ ({environment.device_name})] has TF32, and torch is told not to use it (the gain "
    "assumes half of compute).",
    advise='Call torch.set_float32_matmul_precision("high") once before training.',
    gain=lambda m: share_of(m, "forward", "backward", times=0.5),
    changes=("tf32",),
    fires_on=Measures(
        memory=_GPU,
        environment=Environment(device_name="NVIDIA A100", supports_tf32=True, uses_tf32=False, uses_autocast=False),
        shares={"forward": 0.3, "backward": 0.5},
    ),
    quiet_on=Measures(
        memory=_GPU,
        environment=Environment(device_name="NVIDIA A100", supports_tf32=True, uses_tf32=False, uses_autocast=True),
        shares={"forward": 0.3, "backward": 0.5},
    ),
)
