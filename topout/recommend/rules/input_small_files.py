"""Many small files are read.

Why it matters. Opening a file costs a round trip to the metadata server of a parallel file system,
whatever its size. A few hundred opens a second from every rank are a load that the whole cluster
feels, and each sample pays for its own trip.

How it is measured. Files opened from Python are counted in the rank and its loader workers; the
finding appears above 100 opens a second when input also waits. The gain is the share of input time
the loader spends opening and reading (all of it where that could not be told).

What to do. Put the samples into few large files and read them from there, without an edit to the
script:

    topout pack images/ train.pack
    topout run --packs train.pack train.py

As a first help, copy the data to the node before the job starts and read it from there.

Not a problem when the files lie on a local NVMe or in memory and the loader keeps up.

Reference: FanStore, https://arxiv.org/abs/1809.10799
"""

from topout.schema.finding import Rule
from topout.schema.measures import Input, Measures
from topout.schema.shares import largest_share


def _gain(measures: Measures) -> float | None:
    opening, reading = measures.input.opening_share, measures.input.reading_share
    storage_share = 1.0 if opening is None or reading is None else opening + reading
    return largest_share(measures, "input", times=storage_share)


RULE = Rule(
    code="IN02",
    title="Many small files are read",
    measure="input.opens_per_s",
    above=100,
    when=lambda m: (largest_share(m, "input") or 0.0) > 0.05,
    because="{value:,.0f} files are opened every second, and input takes {input.wait_share:.0%} of the time.",
    advise="Pack the files (topout pack FOLDER PACK) and run with --packs PACK, or copy the data to the node "
    "before training.",
    gain=_gain,
    changes=("packed-input",),
    fires_on=Measures(input=Input(wait_share=0.30, opens_per_s=900.0), shares={"input": 0.30}),
    quiet_on=Measures(input=Input(wait_share=0.01, opens_per_s=900.0), shares={"input": 0.01}),
)
