"""What recipes that count epochs share: data enough for a batch, and going on at any number of ranks.

A checkpoint holds the steps and the rate of the ranks that wrote it. Twice as many ranks make half as many steps of an
epoch, at a rate of their own, so both are computed anew from the samples that are behind us. Not for trainings that
count steps, such as gpt_small.py: theirs mean the same at any number of ranks.
"""

import math

import topout
from topout.schema.errors import TopoutError


def check_enough(batches, options, what="training data"):
    """Incomplete batches are left out; a loop over none would learn nothing, or never end."""
    if not len(batches):
        raise TopoutError(
            f"The {what} do not fill one batch of {options.batch_size} on each rank.",
            why="Incomplete batches are left out, so an epoch would be empty.",
            do="give more data, or a smaller --batch-size",
        )


def open_checkpoints(options, ctx, batches, schedule, stepper):
    """Goes on from the newest one in --checkpoints, as if this number of ranks had trained so far; None without."""
    if not options.checkpoints:
        return None
    rates = list(schedule.base_lrs)  # of this run's batch; a checkpoint brings those of the run that wrote it
    checkpoints = ctx.checkpoint(options.checkpoints, every=options.every, schedule=schedule, stepper=stepper)
    stepper.step = steps_behind(batches, options.batch_size * ctx.world_size, stepper.accumulate)
    set_rates(schedule, rates, stepper.step)
    return checkpoints


def batches_behind(batches, samples_a_batch):
    """Of the epoch under way, which ends with batch number `len(batches)` wherever a resume begins within it."""
    position = batches.state_dict().get("position", 0)  # samples that all ranks together have taken
    if not position:
        return 0
    num_samples = len(batches.packs if isinstance(batches, topout.Loader) else batches.dataset)
    return max(0, len(batches) - (num_samples - position) // samples_a_batch)


def steps_behind(batches, samples_a_batch, accumulate=1):
    """Since the beginning, at this number of ranks."""
    left = len(batches) - batches_behind(batches, samples_a_batch)
    steps_per_epoch = math.ceil(len(batches) / accumulate)
    return (batches.state_dict()["epoch"] + 1) * steps_per_epoch - math.ceil(left / accumulate)


def set_rates(schedule, rates, step):
    """A LambdaLR that has made `step` steps from these rates."""
    schedule.base_lrs, schedule.last_epoch = list(rates), step
    for group, rate, share in zip(schedule.optimizer.param_groups, rates, schedule.lr_lambdas, strict=True):
        group["initial_lr"], group["lr"] = rate, rate * share(step)
    schedule._last_lr = [group["lr"] for group in schedule.optimizer.param_groups]  # what get_last_lr() tells
