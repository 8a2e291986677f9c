"""The input pipeline starves the devices.

Why it matters. A rank without a batch computes nothing, and at the next collective every other rank
waits for it. Adding ranks makes this worse: all of them draw on the same storage.

How it is measured. The time from asking the training DataLoader (in Keras the data set of fit) for
a batch to having it, as a share of the window; the gain is that share on the rank that waits most.
A loader that is fast enough shows close to 0.

What to do. Find out first what the loader does (`input-iops`, `input-bandwidth` or `input-decode`
in the verdict), then

    DataLoader(..., num_workers=8, prefetch_factor=4, persistent_workers=True, pin_memory=True)
    dataset.map(decode, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)    # Keras

with as many workers as the rank has cores to spare. If the workers wait for storage, or there are no
cores left, pack the data; the script stays as it is:

    topout pack images/ train.pack
    topout run --packs train.pack train.py

If they are busy decoding, take `topout.Loader`, which decodes the crop alone, without workers. If they
are idle instead, more of them change nothing: that is IN04.

Not a problem when the wait only shows in the first steps after a start or an epoch;
`persistent_workers=True` removes that.

Reference: https://pytorch.org/docs/stable/data.html
"""

from topout.schema.finding import Rule
from topout.schema.measures import Input, Measures
from topout.schema.shares import are_workers_idle, largest_share

RULE = Rule(
    code="IN01",
    title="The input pipeline starves the devices",
    when=lambda m: (largest_share(m, "input") or 0.0) > 0.10 and not are_workers_idle(m),
    because="The rank that waits most for its next batch does so {gain:.0%} of the time.",
    advise="Give the loader more workers (num_workers, persistent_workers=True; tf.data: num_parallel_calls, "
    "prefetch), or pack the data (topout pack, run --packs).",
    gain=lambda m: largest_share(m, "input"),
    changes=("loader-workers", "packed-input"),
    fires_on=Measures(input=Input(wait_share=0.40), shares={"input": 0.40}),
    quiet_on=Measures(input=Input(wait_share=0.02), shares={"input": 0.02}),
)
