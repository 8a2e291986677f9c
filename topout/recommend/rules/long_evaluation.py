"""Evaluation takes a large share of the time on all ranks.

Why it matters. An evaluation trains nothing. A fifth of the time spent on it is a fifth fewer
epochs in the same allocation.

How it is measured. Time between steps in which the model was in evaluation mode, or a loader was
iterated that no backward followed; in Keras the time inside evaluate and predict. The gain is that
whole share; whoever still evaluates now and then wins less.

What to do. Evaluate less often, or on a fixed subset until the last epochs. Give evaluation a
larger batch: without gradients it needs far less memory. Give its loader workers, as the training
loader has: an evaluation often does nothing but wait for samples. And turn autograd off, which is
faster and smaller:

    with torch.inference_mode():
        for batch in DataLoader(validation_set, batch_size=4 * train_batch_size, num_workers=4):
            ...

Not a problem when the run is a short trial that evaluates more often, relative to its steps, than
the real one will; or when it is no evaluation: rollouts and generation with the model in evaluation
mode look the same, and the finding says so where nothing else told it. `topout.span("evaluation")`
around an evaluation names it.
"""

from topout.schema.finding import Rule
from topout.schema.measures import Environment, Measures, Serial

RULE = Rule(
    code="EV02",
    title="Evaluation takes a large share of the time",
    measure="serial.evaluation_share",
    above=0.20,
    # where one rank evaluates alone, EV01 says what to do
    when=lambda m: (m.serial.single_rank_evaluation_share or 0) < 0.03,
    because="{value:.0%} of the time is evaluation, on all ranks[; told by the mode of the model alone, in 1 of "
    "{serial.steps_per_rollout:.0f} steps, as rollouts would be].",
    advise="Evaluate less often (Keras: validation_freq) or on a subset; give its loader workers and a larger "
    "batch, and compute under torch.inference_mode().",
    fires_on=Measures(serial=Serial(evaluation_share=0.35, single_rank_evaluation_share=0.0)),
    quiet_on=Measures(
        environment=Environment(num_ranks=2),
        serial=Serial(evaluation_share=0.35, single_rank_evaluation_share=0.30, ranks=(0,)),
    ),
)
