"""The stages of the pipeline have unequal work.

Why it matters. Every micro-batch passes every stage, so the pipeline runs at the pace of its
slowest stage. All others wait for it in every micro-batch, and no schedule can fill that.

How it is measured. Forward and backward of each rank in the window; ranks that hold the same stages
of a replicated pipeline are taken together. The gain is what the slowest stage would save if it had
the mean's work.

What to do. Move layers from the named stage to its neighbours. First and last stages carry more
than their layers: embedding, head and loss. On unequal devices give the slower one fewer layers.

Not a problem when the largest layer alone is the slowest stage: then cut that layer (tensor
parallelism), or use fewer stages.

Reference: D. Narayanan et al., PipeDream, SOSP 2019.
"""

from topout.schema.finding import Rule
from topout.schema.measures import Measures, Pipeline


def _gain(measures: Measures) -> float | None:
    found = measures.pipeline
    return None if found is None else found.compute_share * (found.imbalance - 1)


RULE = Rule(
    code="PP02",
    title="One stage of the pipeline is slower than the others",
    measure="pipeline.imbalance",
    above=1.15,
    when=lambda m: m.pipeline is not None and m.pipeline.bubble_share > 0.05,
    because="Stage {pipeline.slowest_stage} on rank {pipeline.slowest_rank} computes {value:.2f} times as long "
    "as the mean stage, and the others wait for it.",
    advise="Move layers from stage {pipeline.slowest_stage} to its neighbours; count the embedding, the head and "
    "the loss, too.",
    gain=_gain,
    fires_on=Measures(
        pipeline=Pipeline(
            schedule="Schedule1F1B", num_stages=4, num_microbatches=16, compute_share=0.5, bubble_share=0.4,
            schedule_bubble_share=0.44, formula_share=3 / 19, imbalance=1.5, slowest_stage=3, slowest_rank=3,
        )
    ),
    quiet_on=Measures(
        pipeline=Pipeline(
            schedule="Schedule1F1B", num_stages=4, num_microbatches=16, compute_share=0.8, bubble_share=0.17,
            schedule_bubble_share=0.17, formula_share=3 / 19, imbalance=1.03, slowest_stage=3, slowest_rank=3,
        )
    ),
)  # fmt: skip
