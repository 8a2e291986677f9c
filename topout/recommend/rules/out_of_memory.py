"""The job ran out of memory.

Why it matters. The run ended before it was done, and whatever it had computed since its last
checkpoint is lost; that is why the whole of its time counts as the gain.

How it is measured. An allocation failed, on the device or on the host; the report says how much was
asked for and what filled the rest: parameters, gradients, optimizer state, and activations, which
grow with the batch. The largest batch that would fit is predicted from that.

What to do. In the order of effort:

    smaller batch per rank, more micro-batches (gradient accumulation)
    torch.autocast("cuda", dtype=torch.bfloat16)       half the activations
    torch.utils.checkpoint.checkpoint(block, x)        recompute activations in backward
    torch.distributed.fsdp.fully_shard(model)          parameters and optimizer state spread over ranks
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True   when much is reserved and little allocated

On the host, fewer loader workers and a smaller prefetch_factor: each worker holds whole batches. Ranks
that keep memory (--keep-memory, or `topout.init()` on CPUs) may hold up to twice as much; leave the
flag out, or say `topout.init(keep_memory=False)`. Where the model is on a GPU and the host's memory ran
out, see ME03.

Not a problem when you were looking for the largest batch.

Reference: S. Rajbhandari et al., ZeRO: memory optimizations toward training trillion parameter
models, SC 2020.
"""

from topout.schema.finding import Rule
from topout.schema.measures import Measures, Memory

RULE = Rule(
    code="ME02",
    title="The job ran out of memory",
    when=lambda m: m.memory.is_out_of_memory and not m.memory.ran_out_beside_devices,
    because="An allocation[ of {memory.requested_bytes:bytes}] failed[; parameters take {memory.parameter_bytes:bytes}]"
    "[, gradients {memory.gradient_bytes:bytes}][, optimizer state {memory.optimizer_bytes:bytes}].",
    advise="Use a smaller batch per rank[ (predicted to fit: {memory.largest_batch})] with gradient accumulation, bf16 "
    "autocast, activation checkpointing, or shard with FSDP.",
    gain=lambda _: 1.0,
    changes=("batch-size", "gradient-accumulation"),
    fires_on=Measures(memory=Memory(is_out_of_memory=True, requested_bytes=2 * 2**30, largest_batch=48)),
    quiet_on=Measures(memory=Memory(is_out_of_memory=False, peak_device_bytes=2 * 2**30)),
)
