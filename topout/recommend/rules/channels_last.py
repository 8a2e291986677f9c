"""Convolutions run on tensors laid out channel by channel.

Why it matters. cuDNN's tensor-core convolutions want the channels of a pixel side by side (NHWC).
Given NCHW they transpose before and after, or a slower kernel is chosen.

How it is measured. The model has convolutions, runs on a GPU, and its weights are not in
`channels_last`. The gain assumes that a quarter of forward and backward can be saved; published
figures reach 22 % with mixed precision.

What to do. Two lines; the shapes stay as they are:

    model = model.to(memory_format=torch.channels_last)
    images = images.to(memory_format=torch.channels_last)

It pays together with autocast, and little without.

Not a problem when convolutions are a small part of the model, or an operation in between turns the
layout back.

Reference: https://pytorch.org/tutorials/intermediate/memory_format_tutorial.html
"""

from topout.schema.finding import Rule
from topout.schema.measures import Environment, Measures, Memory
from topout.schema.shares import has_gpu, share_of

_GPU = Memory(device_total_bytes=80 * 2**30)

RULE = Rule(
    code="PR03",
    title="Convolutions do not use channels_last",
    when=lambda m: has_gpu(m) and m.environment.has_convolutions is True and m.environment.uses_channels_last is False,
    because="The model's convolutions run in NCHW order on the GPU (the gain assumes a quarter of compute).",
    advise="Move model and images to memory_format=torch.channels_last.",
    gain=lambda m: share_of(m, "forward", "backward", times=0.25),
    changes=("channels-last",),
    fires_on=Measures(
        memory=_GPU,
        environment=Environment(device_name="NVIDIA A100", has_convolutions=True, uses_channels_last=False),
        shares={"forward": 0.3, "backward": 0.5},
    ),
    quiet_on=Measures(
        memory=_GPU,
        environment=Environment(device_name="NVIDIA A100", has_convolutions=False, uses_channels_last=False),
        shares={"forward": 0.3, "backward": 0.5},
    ),
)
