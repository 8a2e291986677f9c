"""The loader's workers are idle while the rank waits for them.

Why it matters. Batches are handed out in order, and every worker prepares only a few ahead
(`prefetch_factor`). One slow batch, workers that start anew with every epoch, or a rank that is busy
taking a batch over (unpacking, pinning) leave the others without work. More workers change nothing.

How it is measured. What each worker does is looked at ten times a second. The finding appears when
they were computing, opening and reading for less than half the share of the time in which ranks wait
for batches: even if all of that work fell into the waiting, most workers were idle then. The gain is
the waiting of the rank that waits most.

What to do. Let batches be prepared further ahead, keep the workers, and make a batch cheap to take
over: few large tensors instead of many small ones.

    DataLoader(..., prefetch_factor=8, persistent_workers=True, pin_memory=True)

Where the order of batches does not matter, `in_order=False` hands out those that are ready. If the
workers fetch samples from a store over the network, they wait for its answers and not for work: then
more of them do help, as they ask at the same time.

Not a problem when the wait only shows where an epoch starts and epochs are long.

Reference: https://pytorch.org/docs/stable/data.html
"""

from topout.schema.finding import Rule
from topout.schema.measures import Input, Measures
from topout.schema.shares import are_workers_idle, largest_share

_IDLE = Input(
    wait_share=0.40, num_workers=8, running_share=0.10, opening_share=0.01, reading_share=0.02, limit="decode"
)
_BUSY = Input(
    wait_share=0.40, num_workers=8, running_share=0.80, opening_share=0.01, reading_share=0.02, limit="decode"
)

RULE = Rule(
    code="IN04",
    title="Loader workers are idle while the rank waits",
    when=lambda m: (largest_share(m, "input") or 0.0) > 0.10 and are_workers_idle(m),
    because="The rank that waits most for its next batch does so {gain:.0%} of the time, and its "
    "{input.num_workers} workers were seen computing in {input.running_share:.0%} of the looks at them.",
    advise="More workers hardly help unless a network store keeps them waiting: raise prefetch_factor, set "
    "persistent_workers=True, hand over few large tensors (pin_memory=True).",
    gain=lambda m: largest_share(m, "input"),
    changes=("packed-input",),
    fires_on=Measures(input=_IDLE, shares={"input": 0.40}),
    quiet_on=Measures(input=_BUSY, shares={"input": 0.40}),
)
