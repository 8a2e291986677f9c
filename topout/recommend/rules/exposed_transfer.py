"""Communication is not hidden behind computation.

Why it matters. DDP sends gradients while backward still computes the others. What is left when
backward has nothing more to compute is exposed: all ranks have arrived, and all of them wait for
the wire.

How it is measured. From the last rank's arrival at a collective to its end, as far as no rank
computes meanwhile. If the clocks of the hosts disagree too much, waiting for late ranks is in it
too, and the report says so. On GPUs it lies inside backward, and the kernels that `--profile` saw
tell it apart, waiting for late ranks included. The gain is all of it.

What to do. Where the script averages gradients itself after backward, with an `all_reduce` for each,
let `DistributedDataParallel` or `topout.init()` and `wrap` do it: they send while backward goes on.
Where they do already, send less, or less often: accumulate gradients with `model.no_sync()` for all but the
last micro-batch, use a larger batch per rank, compress gradients to bf16

    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks     # NCCL alone
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)

    ctx.wrap(model, optimizer, loader, compress="bf16")                       # Gloo, too

Send earlier: try `DistributedDataParallel(..., bucket_cap_mb=...)` half and double as large,
`gradient_as_bucket_view=True`. Send faster: check that the fast network is in use (NCCL_DEBUG=INFO;
GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME).

Not a problem when the job is at the size where you stop adding ranks anyway.

Reference: S. Li et al., PyTorch Distributed: experiences on accelerating data parallel training,
VLDB 2020.
"""

from topout.schema.finding import Rule
from topout.schema.measures import Communication, Measures
from topout.schema.shares import exposed_transfer_share

RULE = Rule(
    code="CO01",
    title="Communication is not hidden behind computation",
    when=lambda m: (exposed_transfer_share(m) or 0.0) > 0.10,
    because="{gain:.0%} of the time all ranks wait for the wire[, {communication.bytes_per_step:bytes} a step].",
    advise="Send during backward (DistributedDataParallel, topout.init()); where it is so, accumulate gradients "
    "(no_sync), compress them to bf16, try other bucket_cap_mb.",
    gain=exposed_transfer_share,
    changes=("bucket-size", "gradient-compression"),
    fires_on=Measures(
        communication=Communication(transfer_share=0.30, bytes_per_step=100e6), shares={"transfer": 0.30}
    ),
    quiet_on=Measures(communication=Communication(transfer_share=0.04), shares={"transfer": 0.04}),
)
