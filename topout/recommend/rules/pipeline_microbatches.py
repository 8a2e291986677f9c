"""The pipeline has too few micro-batches to be filled.

Why it matters. With p ranks and m micro-batches every rank stands still for (p - 1) / (m + p - 1)
of the schedule's time, whatever its speed: it waits while the pipeline fills and drains.

How it is measured. The formula of the schedule that ran, with the stages and micro-batches that
were seen, where stages really waited for more than 10 % of the time. The gain is what the same
formula gives with the micro-batches advised, as far as the schedule fills the step, and never more
than the bubble. Smaller micro-batches may compute less efficiently, so it is an upper bound.

What to do. Four micro-batches a rank, of a larger batch or of smaller pieces:

    ScheduleGPipe(stage, n_microbatches=8, loss_fn=loss)

Activations of all micro-batches are kept by GPipe; `Schedule1F1B` has the same bubble and keeps
those of p at most. `ScheduleInterleaved1F1B` with v stages a rank divides the bubble by about v,
for v times the messages; zero-bubble schedules fill it with gradients of weights.

Not a problem when memory forces the pipeline and the batch may not grow.

References: Y. Huang et al., GPipe, NeurIPS 2019; D. Narayanan et al., Efficient large-scale
language model training on GPU clusters using Megatron-LM, SC 2021.
"""

from topout.schema.finding import Rule
from topout.schema.measures import Measures, Pipeline


def _gain(measures: Measures) -> float | None:
    found = measures.pipeline
    if found is None or found.formula_share is None or found.better_share is None:
        return None
    # the schedule's time for the same work is proportional to 1 / (1 - bubble)
    saved = 1 - (1 - found.formula_share) / (1 - found.better_share)
    return min(saved * (found.compute_share + found.bubble_share), found.bubble_share)


RULE = Rule(
    code="PP01",
    title="Too few micro-batches for the pipeline",
    measure="pipeline.bubble_share",
    above=0.10,
    when=lambda m: m.pipeline is not None and m.pipeline.better_microbatches is not None,
    because="The pipeline idles {value:.0%} of the time; {pipeline.num_microbatches} micro-batches on "
    "{pipeline.num_stages} stages alone make that {pipeline.formula_share:.0%} of the schedule.",
    advise="{pipeline.better_microbatches} micro-batches instead of {pipeline.num_microbatches} would make it "
    "{pipeline.better_share:.0%}; or put several stages on each rank (ScheduleInterleaved1F1B).",
    gain=_gain,
    fires_on=Measures(
        pipeline=Pipeline(
            schedule="ScheduleGPipe", num_stages=2, num_microbatches=2, compute_share=0.6, bubble_share=0.3,
            schedule_bubble_share=0.34, formula_share=1 / 3, better_microbatches=8, better_share=1 / 9,
        )
    ),
    quiet_on=Measures(
        pipeline=Pipeline(
            schedule="ScheduleGPipe", num_stages=2, num_microbatches=16, compute_share=0.9, bubble_share=0.06,
            schedule_bubble_share=0.06, formula_share=1 / 17,
        )
    ),
)  # fmt: skip
