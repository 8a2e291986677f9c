"""Training stops while checkpoints are written.

Why it matters. `torch.save` returns when the last byte is written. Until then the rank computes
nothing, and if only one rank saves, all others wait for it at the next collective.

How it is measured. The time inside torch.save and torch.distributed.checkpoint.save (in Keras
save, save_weights and the callbacks that call them) on the rank that saves longest.

What to do. Copy the state to host memory and write it in the background, every rank its own part:

    future = torch.distributed.checkpoint.async_save({"model": model.state_dict()}, checkpoint_id=path)
    ...
    future.result()    # before the next save

Save to a local disk first where there is one, and less often: about sqrt(2 * time of a save * mean
time between failures) apart is best (Young).

Not a problem when a short trial saves more often, relative to its steps, than the real run will.

Reference: J. W. Young, A first order approximation to the optimum checkpoint interval, 1974.
"""

from topout.schema.finding import Rule
from topout.schema.measures import Measures, Serial
from topout.schema.shares import largest_share

RULE = Rule(
    code="CK01",
    title="Training stops while checkpoints are written",
    # the mean over many ranks hides a save on one of them
    when=lambda m: (largest_share(m, "checkpoint") or 0.0) > 0.03,
    because="The rank that saves longest does so {gain:.0%} of the time, and trains nothing meanwhile.",
    advise="Save in the background (torch.distributed.checkpoint.async_save), every rank its part, or less often "
    "(Keras: save_freq).",
    gain=lambda m: largest_share(m, "checkpoint"),
    changes=("async-checkpoint",),
    fires_on=Measures(serial=Serial(checkpoint_share=0.15), shares={"checkpoint": 0.15}),
    quiet_on=Measures(serial=Serial(checkpoint_share=0.01), shares={"checkpoint": 0.01}),
)
