"""oneDNN computes the gradients of convolutions on ARM, where it has no fast kernels for them.

Why it matters. torch hands convolutions on CPUs to oneDNN. Forward that is right; gradients torch's own kernels
compute 1.2 to 6 times as fast on ARM (Neoverse N1, torch 2.13: a small residual network 1.2, 3x3 convolutions of 16 to
256 channels 1.5 to 5.8, a ResNet-18 4.5).

How it is measured. The model has convolutions, ranks compute on ARM CPUs, oneDNN is on when backward begins, and
backward takes more than 2.2 times as long as forward, which is what torch's own kernels take. The gain is what is above
that. Of several ranks communication must have been told apart, since it stands under backward otherwise.

What to do. Try it without an edit, and let `topout compare` say what it brings:

    topout run --no-onednn-backward train.py

In the script it is one line around backward; forward stays as it is:

    with torch.backends.mkldnn.flags(enabled=False):
        loss.backward()

Gradients are the same but for rounding. `topout doctor` times both kernels on this machine. Scripts that use
`topout.train.compute` say `Compute(onednn_backward="auto")`, which times both on the model.

Not a problem when the processor's oneDNN computes gradients well, as on x86, or most of backward is no convolution.

Reference: https://pytorch.org/docs/stable/backends.html#torch-backends-mkldnn
"""

from topout.schema.finding import Rule
from topout.schema.measures import Environment, Measures
from topout.schema.shares import computes_on_arm

_OF_FORWARD = 2.2
"""What backward takes with torch's own kernels, as a multiple of forward: 1.6 to 3 over the shapes tried."""


def _above_usual(measures: Measures) -> float | None:
    if not measures.shares:
        return None
    return measures.shares.get("backward", 0.0) - _OF_FORWARD * measures.shares.get("forward", 0.0)


def _is_slow(measures: Measures) -> bool:
    seen = measures.environment
    return bool(
        computes_on_arm(measures)
        and seen.has_convolutions
        and seen.backward_uses_onednn
        and not seen.uses_autocast
        and (_above_usual(measures) or 0.0) > 0
        # else communication stands under backward, too
        and (seen.num_ranks == 1 or measures.communication.transfer_share is not None)
    )


_HERE = Environment(processor="aarch64", has_convolutions=True, backward_uses_onednn=True)

RULE = Rule(
    code="PR04",
    title="oneDNN computes gradients of convolutions on ARM",
    when=_is_slow,
    because="oneDNN has no fast gradients of convolutions on ARM; {gain:.0%} of the time is what backward takes above "
    "2.2 times forward, the usual with torch's own kernels.",
    advise="Try topout run --no-onednn-backward; in the script, torch.backends.mkldnn.flags(enabled=False) around "
    "backward.",
    gain=_above_usual,
    changes=("onednn-backward",),
    fires_on=Measures(environment=_HERE, shares={"forward": 0.2, "backward": 0.7}),
    quiet_on=Measures(
        environment=Environment(processor="x86_64", has_convolutions=True, backward_uses_onednn=True),
        shares={"forward": 0.2, "backward": 0.7},
    ),
)
