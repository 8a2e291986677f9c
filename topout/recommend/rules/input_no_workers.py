"""The loader has no workers, and the rank waits for it.

Why it matters. With `num_workers=0` a batch is read and transformed in the training process itself,
between two steps. The device idles for as long as that takes, even when the machine has cores to
spare.

How it is measured. The number of workers of the DataLoader that feeds training, and the time until
it yields a batch. The gain is all of that time: workers prepare batches while the devices compute.

What to do. Begin with 2 workers a rank and double while the step gets shorter:

    DataLoader(..., num_workers=2, persistent_workers=True)

Guard the script with `if __name__ == "__main__":` where processes are spawned, and let every worker
open its own files.

Not a problem when the data set is in memory and a batch is a slice of it, or when every core
already computes.

Reference: https://pytorch.org/docs/stable/data.html#single-and-multi-process-data-loading
"""

from topout.schema.finding import Rule
from topout.schema.measures import Input, Measures
from topout.schema.shares import largest_share

RULE = Rule(
    code="IN03",
    title="The loader works in the training process",
    when=lambda m: m.input.num_workers == 0 and (largest_share(m, "input") or 0.0) > 0.05,
    because="The DataLoader has num_workers=0, and each batch is made while the device idles: {gain:.0%} of the time.",
    advise="Set num_workers=2 or more and persistent_workers=True.",
    gain=lambda m: largest_share(m, "input"),
    changes=("loader-workers",),
    fires_on=Measures(input=Input(wait_share=0.20, num_workers=0), shares={"input": 0.20}),
    quiet_on=Measures(input=Input(wait_share=0.20, num_workers=4), shares={"input": 0.20}),
)
