"""Many small messages pay the network's latency again and again.

Why it matters. A message costs a start-up time whatever its size, and a collective over N ranks
pays it log N times or more. Below about 64 KiB that start-up is nearly all of the cost, and a
faster network does not help.

How it is measured. Collectives a step and their mean size, where exposed transfer is above 5 % of
the time, on GPUs as the kernels of `--profile` tell it. The gain is all exposed transfer.

What to do. Send few large messages: larger buckets in DDP, one flat tensor instead of many in
hand-written loops

    flat = torch.cat([p.grad.flatten() for p in parameters])
    dist.all_reduce(flat)

metrics once in many steps instead of every step, `broadcast_buffers=False` when batch-norm
statistics may differ by rank.

Not a problem when the messages run while the devices compute; then transfer is small.
"""

from topout.schema.finding import Rule
from topout.schema.measures import Communication, Measures
from topout.schema.shares import exposed_transfer_share

RULE = Rule(
    code="CO02",
    title="Many small messages",
    measure="communication.mean_message_bytes",
    below=64 * 1024,
    when=lambda m: (m.communication.num_collectives_per_step or 0) > 4 and (exposed_transfer_share(m) or 0) > 0.05,
    because="{communication.num_collectives_per_step:.0f} collectives a step of {value:bytes} on average: latency, not "
    "bandwidth, takes {gain:.0%} of the time.",
    advise="Send few large messages: larger buckets, one flat tensor, metrics less often, broadcast_buffers=False.",
    gain=exposed_transfer_share,
    changes=("bucket-size",),
    fires_on=Measures(
        communication=Communication(transfer_share=0.20, num_collectives_per_step=60.0, mean_message_bytes=4096.0),
        shares={"transfer": 0.20},
    ),
    quiet_on=Measures(
        communication=Communication(transfer_share=0.20, num_collectives_per_step=4.0, mean_message_bytes=25e6),
        shares={"transfer": 0.20},
    ),
)
