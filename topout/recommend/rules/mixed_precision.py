"""The device computes in single precision and could do better.

Why it matters. Tensor cores multiply bf16 matrices many times faster than fp32 ones, and every
tensor needs half the memory and half the bandwidth.

How it is measured. The device says that it computes in bf16, and no autocast region was seen. The
gain assumes that half of forward and backward can be saved; how much it is depends on the share of
matrix products and convolutions.

What to do. Wrap forward and loss, not backward:

    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(model(images), labels)
    loss.backward()

bf16 needs no GradScaler; fp16 does. Compare the loss curves before relying on it: `topout compare`
shows the time.

Not a problem when the numerics need fp32, or the model's own weights are bf16 already.

Reference: P. Micikevicius et al., Mixed precision training, ICLR 2018.
"""

from topout.schema.finding import Rule
from topout.schema.measures import Environment, Measures, Memory
from topout.schema.shares import has_gpu, share_of

_GPU = Memory(device_total_bytes=80 * 2**30)

RULE = Rule(
    code="PR01",
    title="Mixed precision is not in use",
    # a CPU may support bf16 and still be slower with it, so only GPUs count
    when=lambda m: has_gpu(m) and m.environment.supports_bf16 is True and m.environment.uses_autocast is False,
    because="The device[ ({environment.device_name})] computes in bf16, and no autocast was seen (the gain "
    "assumes half of compute).",
    advise='Wrap forward and loss in torch.autocast("cuda", dtype=torch.bfloat16).',
    gain=lambda m: share_of(m, "forward", "backward", times=0.5),
    changes=("autocast-bf16",),
    fires_on=Measures(
        memory=_GPU,
        environment=Environment(device_name="NVIDIA A100", supports_bf16=True, uses_autocast=False),
        shares={"forward": 0.3, "backward": 0.5},
    ),
    quiet_on=Measures(
        memory=_GPU,
        environment=Environment(device_name="NVIDIA A100", supports_bf16=True, uses_autocast=True),
        shares={"forward": 0.3, "backward": 0.5},
    ),
)
