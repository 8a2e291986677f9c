"""The host cannot keep up with the devices.

Why it matters. A GPU computes what Python has queued. Where the queue runs dry (small kernels,
`.item()`, printing, metrics on the CPU) the GPU idles, and a faster one would not help. On a CPU
the same code takes cores from the step itself.

How it is measured. Time of a step that no phase explains (`other`); with a GPU, the share in which
it had run dry while the host was still preparing work. Gaps between small kernels count: in a few
steps a GPU is held back until a whole phase is in its queue, and what the phase takes
without a gap is work. The larger of the two is the gain.

What to do. Look at what the loop does besides training:

    loss.item(), print, tqdm, metrics    only every 50th step
    batch size                           larger: the same launches for more samples
    tensor.to(device)                    with pin_memory=True and non_blocking=True
    optimizer                            fused=True, or foreach=True
    model = torch.compile(model, mode="reduce-overhead")    many small kernels become few, or one CUDA graph
    model.compile(steps_per_execution=16)                   Keras: many small steps in one call

`topout run --profile 20-29 train.py` names the functions.

Not a problem when that work is wanted, such as augmentation on the host or a simulation between
steps.
"""

from topout.schema.finding import Rule
from topout.schema.measures import Compute, Measures
from topout.schema.shares import share_of


def _host_share(measures: Measures) -> float | None:
    found = [share for share in (share_of(measures, "other"), measures.compute.host_share) if share is not None]
    return max(found, default=None)


RULE = Rule(
    code="HO01",
    title="The host cannot keep up with the devices",
    when=lambda m: (_host_share(m) or 0.0) > 0.15,
    because="{gain:.0%} of the time goes into host code around the step.",
    advise="Take .item(), printing and metrics out of the loop, use fused optimizers and torch.compile (Keras: "
    "steps_per_execution); --profile names functions.",
    gain=_host_share,
    changes=("compile",),
    fires_on=Measures(shares={"forward": 0.3, "backward": 0.4, "other": 0.3}),
    quiet_on=Measures(shares={"forward": 0.45, "backward": 0.5, "other": 0.05}, compute=Compute(host_share=0.02)),
)
