"""More than half of the device's memory is unused.

Why it matters. What a step costs once, whatever its batch (kernel launches, the optimizer, the
all-reduce), is paid less often per sample with a larger batch.

How it is measured. Largest allocation of any rank against the device's memory. The gain is what
these once-a-step costs would shrink by if the batch grew until memory is full; larger batches may
also make kernels more efficient, which is not counted.

What to do. Double the batch of each rank while it fits and the samples per second grow, and scale
the learning rate with it (linear rule with warm-up). Where the global batch must stay, use fewer
ranks, or spend the memory on turning activation checkpointing off.

Not a problem when the larger batch trains to a worse result, or the step is all compute.

Reference: P. Goyal et al., Accurate, large minibatch SGD, 2017.
"""

from topout.schema.finding import Rule
from topout.schema.measures import Measures, Memory
from topout.schema.shares import share_of

_SHARES = {"forward": 0.3, "backward": 0.4, "optimizer": 0.1, "transfer": 0.2}


def _used_share(measures: Measures) -> float | None:
    memory = measures.memory
    if memory.peak_device_bytes is None or not memory.device_total_bytes:
        return None
    return memory.peak_device_bytes / memory.device_total_bytes


def _is_unused(measures: Measures) -> bool:
    used = _used_share(measures)
    return used is not None and used < 0.5 and not measures.memory.is_out_of_memory


RULE = Rule(
    code="ME01",
    title="Half of the device's memory is unused",
    when=_is_unused,
    because="The largest rank uses {memory.peak_device_bytes:bytes} of {memory.device_total_bytes:bytes}.",
    advise="Double the batch of each rank while samples per second grow, and scale the learning rate with it.",
    gain=lambda m: share_of(m, "wait", "transfer", "optimizer", "other", times=1 - (_used_share(m) or 0.0)),
    changes=("batch-size",),
    fires_on=Measures(memory=Memory(peak_device_bytes=20 * 2**30, device_total_bytes=80 * 2**30), shares=_SHARES),
    quiet_on=Measures(memory=Memory(peak_device_bytes=60 * 2**30, device_total_bytes=80 * 2**30), shares=_SHARES),
)
