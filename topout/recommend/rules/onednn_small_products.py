"""oneDNN computes small matrix products on ARM, where its call takes longer than the product.

Why it matters. torch hands the product of every `nn.Linear` in forward to oneDNN on ARM, from some 20x20x20 on. What
that call does beside the product (laying out the weights, choosing a kernel) takes 75 to 125 µs each time (Neoverse N1,
torch 2.13): a product of 32x64x64 takes 134 µs instead of 39, one of 256x128x128 as long as without it. A net of 100
such layers computes 1.6 times as fast without it, a small perceptron 1.2 times. Gradients are not concerned.

How it is measured. The products of that layout with fewer than 4 million multiplications are counted on the graph of
one step. The gain is 150 µs for each, at most three quarters of forward; where threads share cores it is more, since a
call waits for all of them. Ranks compute on ARM CPUs in float32, with oneDNN on.

What to do. torch has a variable for the size from which products go to oneDNN. Try it without an edit, and let
`topout compare` say what it brings:

    TORCH_MKLDNN_MATMUL_MIN_SIZE=4000000 topout run train.py

Results are the same but for rounding. Convolutions stay with oneDNN. `topout doctor` times both on this machine.

Not a problem when the processor's oneDNN is quicker to call than that: the figures are of one kind of core.

Reference: https://docs.pytorch.org/docs/stable/backends.html#torch-backends-mkldnn
"""

from topout.schema.finding import Rule
from topout.schema.measures import Environment, Measures, StepTime
from topout.schema.shares import computes_on_arm

_CALL_NS = 150e3
"""At most, on cores that do nothing else."""
_OF_FORWARD = 0.75
_LEAST_GAIN = 0.03
"""Below it the advice would be noise."""


def _calls(measures: Measures) -> float | None:
    products, step = measures.environment.num_small_products, measures.step
    if not measures.shares or products is None or step is None:
        return None
    return min(products * _CALL_NS / step.mean_ns, _OF_FORWARD * measures.shares.get("forward", 0.0))


def _are_slow(measures: Measures) -> bool:
    seen = measures.environment
    return bool(computes_on_arm(measures) and seen.backward_uses_onednn and (_calls(measures) or 0.0) > _LEAST_GAIN)


_STEP = StepTime(mean_ns=40e6, median_ns=40e6, p05_ns=40e6, p95_ns=40e6)

RULE = Rule(
    code="PR05",
    title="oneDNN computes small matrix products on ARM",
    when=_are_slow,
    because="Matrix products so small that calling oneDNN takes longer than they do: "
    "{environment.num_small_products} a step (the gain assumes 0.15 ms each).",
    advise="Try TORCH_MKLDNN_MATMUL_MIN_SIZE=4000000 topout run: torch's own kernels for products below that size.",
    gain=_calls,
    fires_on=Measures(
        environment=Environment(processor="aarch64", backward_uses_onednn=True, num_small_products=100),
        step=_STEP,
        shares={"forward": 0.5, "backward": 0.4},
    ),
    quiet_on=Measures(
        environment=Environment(processor="x86_64", backward_uses_onednn=True, num_small_products=100),
        step=_STEP,
        shares={"forward": 0.5, "backward": 0.4},
    ),
)
