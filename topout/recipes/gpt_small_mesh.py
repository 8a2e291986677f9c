"""The same training over a mesh of ranks: replicas, shards, split layers and stages, as a TOML file says.

Used by gpt_small.py with --mesh. Not for what fits one device: data parallelism alone costs less. See docs/hybrid.md.
"""

import math

import torch
from torch.utils.data import DataLoader

import topout
from topout.recipes.epochs import check_enough
from topout.recipes.gpt_small import Pace, loss_of, make_model, make_optimizer, say, warmup_then_cosine
from topout.schema.errors import TopoutError
from topout.train.precision import resolved


def train(options, ctx, training, validation):
    """Bits per byte at the end, or None where the job was stopped."""
    check(options, ctx)
    trainer = ctx.hybrid(
        lambda: make_model(options),
        loss_of,
        lambda parameters: make_optimizer(parameters, options),
        mesh=options.mesh,
        clip_norm=options.clip,
        precision="bf16" if resolved(options.precision, ctx.device) == "bf16" else None,
    )
    # stages exchange tensors of one size, so an incomplete batch at the end is left out, of validation too
    batches = trainer.shard(DataLoader(training, options.batch_size, shuffle=True, drop_last=True))
    evaluation = trainer.shard(DataLoader(validation, options.batch_size, drop_last=True))
    check_enough(batches, options)
    check_enough(evaluation, options, "validation data")
    schedule = warmup_then_cosine(trainer.optimizer, options.warmup, options.steps)
    checkpoints = None
    if options.checkpoints:
        checkpoints = trainer.checkpoint(options.checkpoints, every=options.every, schedule=schedule, loader=batches)
    pace = Pace(options.batch_size * options.context * trainer.num_rows, trainer.num_steps)
    bits = None
    while trainer.num_steps < options.steps and not topout.should_stop():
        for inputs, targets in batches:
            loss = trainer.step(inputs, targets)
            schedule.step()
            if checkpoints is not None:
                checkpoints.step()
            is_over = trainer.num_steps >= options.steps or topout.should_stop()
            if is_over or trainer.num_steps % options.evaluate_every == 0:
                trainer.settle()
                said = f"step {trainer.num_steps:5d}/{options.steps}  loss {loss.item():.4f}"  # waits for the device
                rate = pace.at(trainer.num_steps)
                bits = evaluate(trainer, evaluation)
                say(ctx, f"{said}  validation {bits:.4f} bits per byte  {rate:,.0f} tokens/s")
                pace.begin(trainer.num_steps)
            if is_over:
                break
    if checkpoints is not None:
        checkpoints.save()
    if bits is None and not topout.should_stop():  # a finished training was started again
        bits = evaluate(trainer, evaluation)
    trainer.close()
    return bits


def evaluate(trainer, batches):
    """Bits per byte of the whole batches of the validation text; all ranks of a row see the same windows."""
    losses = [trainer.evaluate(inputs, targets) for inputs, targets in batches]
    return torch.stack(losses).double().mean().item() / math.log(2)


def check(options, ctx):
    if options.accumulate > 1 or resolved(options.precision, ctx.device) == "fp16":
        wrong = f"--accumulate {options.accumulate}" if options.accumulate > 1 else "--precision fp16"
        raise TopoutError(
            f"{wrong} cannot be given with --mesh.",
            why="A mesh divides batches by itself, and computes in float32 or bf16.",
            do=f"write microbatches = {options.accumulate} into {options.mesh}, or take bf16",
        )
