"""The host's memory ran out, beside devices that hold the model.

Why it matters. The run ended before it was done, and whatever it had computed since its last
checkpoint is lost; that is why the whole of its time counts as the gain.

How it is measured. An allocation on the host failed, or the kernel killed a rank for lack of memory,
in a job that computes on accelerators. Activations are not in the host's memory, so no batch is
predicted to fit; nor is the model, unless it is offloaded, and then the report says how much of it.

What to do. Look at what grows on the host. Each loader worker holds prefetch_factor whole batches
and a copy of what the data set keeps in memory, which grows as it is read (reference counts):

    DataLoader(..., num_workers=4, prefetch_factor=2)    fewer batches under way
    NumPy arrays or a pack instead of long lists         nothing that every worker copies
    losses.append(loss.item())                           not the tensor with its graph
    torch.load(path, mmap=True)                          not the whole checkpoint at once

What is offloaded (CPUOffloadPolicy, DeepSpeed) takes less of a host where it is sharded over more of
them, or where parameters stay on devices that have room.

Or ask the scheduler for more memory a node: what it grants may be less than the node has.

Not a problem when you were looking for the largest number of workers.

Reference: PyTorch documentation, torch.utils.data, multi-process data loading.
"""

from topout.schema.finding import Rule
from topout.schema.measures import Measures, Memory

_FULL_HOST = Memory(
    is_out_of_memory=True,
    ran_out_on="host",
    peak_host_bytes=60 * 2**30,
    host_total_bytes=64 * 2**30,
    device_total_bytes=80 * 2**30,
)

RULE = Rule(
    code="ME03",
    title="The host's memory ran out, not the device's",
    when=lambda m: m.memory.is_out_of_memory and m.memory.ran_out_beside_devices,
    because="An allocation on the host failed[; the largest rank and its workers held {memory.peak_host_bytes:bytes}]"
    "[, the host has {memory.host_total_bytes:bytes}]"
    "[; {memory.offloaded_bytes:bytes} of parameters and optimizer state are offloaded to it].",
    advise="Use fewer loader workers or a smaller prefetch_factor, keep no tensors from step to step, or ask for more "
    "memory a node.",
    gain=lambda _: 1.0,
    changes=("loader-workers",),
    fires_on=Measures(memory=_FULL_HOST),
    quiet_on=Measures(memory=Memory(is_out_of_memory=True, ran_out_on="device", device_total_bytes=80 * 2**30)),
)
