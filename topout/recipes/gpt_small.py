"""Train a small GPT on text, byte by byte: one CPU, one GPU, many nodes, or a mesh of them, from the same script.

    topout run -n 2 gpt_small.py --small                       # two blocks of 64, a minute on a CPU
    topout run gpt_small.py --text corpus.txt                  # 12 blocks of 768, 1024 bytes at a time; all GPUs here
    srun -N 4 --ntasks-per-node 4 python gpt_small.py --text corpus.txt --checkpoints checkpoints
    topout run -n 4 gpt_small.py --small --mesh mesh.toml      # tensors, layers or both split over ranks

Without --text it reads the sources of Python's standard library. Not for reaching a good model of language: bytes, one
pass after another over one file. See docs/recipe-gpt-small.md.
"""

import argparse
import math
import time
from pathlib import Path

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

import topout
from topout.recipes.epochs import check_enough
from topout.recipes.gpt_small_model import GPT
from topout.recipes.gpt_small_text import entropy_of_bytes, read_text, split_text
from topout.train.compute import Compute
from topout.train.evaluate import mean


def number_or_word(text):
    return int(text) if text.isdecimal() else {"on": True, "off": False}.get(text, text)


def parse_options(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="a file; without it, Python's own sources")
    parser.add_argument("--small", action="store_true", help="a small model and at most a megabyte of text")
    parser.add_argument("--blocks", type=int)
    parser.add_argument("--width", type=int)
    parser.add_argument("--heads", type=int)
    parser.add_argument("--context", type=int, help="bytes that the model sees at once")
    parser.add_argument("--tied", action="store_true", help="the head uses the embedding's weights")
    parser.add_argument("--steps", type=int, help="of the optimizer")
    parser.add_argument(
        "--batch-size", type=int, help="windows of a batch on each rank; with --mesh, on each row of it"
    )
    parser.add_argument("--lr", type=float)
    parser.add_argument("--warmup", type=int, help="steps until the rate is reached")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--clip", type=float, default=1.0, help="largest norm of all gradients")
    parser.add_argument("--evaluate-every", type=int, help="steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mesh", type=Path, help="a TOML file that says how ranks divide the work: docs/hybrid.md")
    parser.add_argument("--checkpoints", type=Path, help="save there and go on from there; a folder all ranks see")
    parser.add_argument("--every", default="10m", type=number_or_word, help="time or steps between checkpoints")
    parser.add_argument("--precision", default="auto", help="auto, fp32, bf16, fp16")
    parser.add_argument("--compile", default="auto", type=number_or_word, help="auto, on, off, or a mode of it")
    parser.add_argument("--accumulate", type=int, default=1, help="batches before each step")
    options = parser.parse_args(arguments)
    names = ("blocks", "width", "heads", "context", "steps", "batch_size", "lr", "warmup", "evaluate_every")
    small = (2, 64, 4, 64, 300, 16, 4e-3, 30, 100)
    full = (12, 768, 12, 1024, 20_000, 32, 6e-4, 500, 500)
    for name, value in zip(names, small if options.small else full, strict=True):
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.width % options.heads:
        parser.error(f"--width {options.width} cannot be divided among --heads {options.heads}")
    return options


def main():
    options = parse_options()
    ctx = topout.init(seed=options.seed)
    torch.manual_seed(options.seed)
    text = read_text(options.text, most_bytes=1_000_000 if options.small else None)
    training, validation = split_text(text, options.context)
    say(ctx, f"{len(text):,} bytes; one by one they take {entropy_of_bytes(validation.text):.4f} bits each")
    if options.mesh:
        from topout.recipes.gpt_small_mesh import train

        bits = train(options, ctx, training, validation)
    else:
        bits = train_data_parallel(options, ctx, training, validation)
    if bits is not None:
        say(ctx, f"validation {bits:.4f} bits per byte")
    ctx.close()


def make_model(options):
    return GPT(
        num_blocks=options.blocks,
        width=options.width,
        num_heads=options.heads,
        context=options.context,
        is_tied=options.tied,
    )


def train_data_parallel(options, ctx, training, validation):
    """Every rank has the whole model; bits per byte at the end, or None where the job was stopped."""
    batches = DataLoader(
        training, options.batch_size, shuffle=True, drop_last=True, pin_memory=ctx.device.type == "cuda"
    )
    evaluation = DataLoader(validation, options.batch_size)
    model = make_model(options).to(ctx.device)
    optimizer = make_optimizer(model.parameters(), options)
    compute = Compute(
        precision=options.precision, compile=options.compile, accumulate=options.accumulate, clip_norm=options.clip,
        dynamic_shapes=False,
    )  # fmt: skip
    compute.apply(model, optimizer)
    model, optimizer, batches = ctx.wrap(model, optimizer, batches)
    check_enough(batches, options)
    stepper = compute.stepper(model, optimizer, ctx.place)
    schedule = warmup_then_cosine(optimizer, options.warmup, options.steps)
    checkpoints = None
    if options.checkpoints:
        checkpoints = ctx.checkpoint(options.checkpoints, every=options.every, schedule=schedule, stepper=stepper)
    pace = Pace(options.batch_size * options.context * options.accumulate * ctx.world_size, stepper.step)
    bits = None
    while stepper.step < options.steps and not topout.should_stop():
        for inputs, targets in batches:  # one pass over the text; training ends within one
            with stepper.forward():
                loss = loss_of(model(to_device(inputs, ctx)), to_device(targets, ctx))
            if not stepper.backward(loss):
                continue
            schedule.step()
            if checkpoints is not None:
                checkpoints.step()
            is_over = stepper.step >= options.steps or topout.should_stop()
            if is_over or stepper.step % options.evaluate_every == 0:
                stepper.settle()
                said = f"step {stepper.step:5d}/{options.steps}  loss {loss.item():.4f}"  # waits for the device
                rate = pace.at(stepper.step)
                bits = evaluate(model, evaluation, stepper, ctx)
                say(ctx, f"{said}  validation {bits:.4f} bits per byte  {rate:,.0f} tokens/s")
                pace.begin(stepper.step)
            if is_over:
                break
    if checkpoints is not None:
        checkpoints.save()
        checkpoints.close()
    if bits is None and not topout.should_stop():  # a finished training was started again
        bits = evaluate(model, evaluation, stepper, ctx)
    return bits


def evaluate(model, batches, stepper, ctx):
    """Bits per byte of the validation text: each window once, on some rank."""

    def step(batch):
        inputs, targets = (to_device(part, ctx) for part in batch)
        with stepper.autocast():
            loss = loss_of(model(inputs), targets)
        return {"loss": mean(loss.double(), targets.numel())}

    return ctx.evaluate(step, batches)["loss"] / math.log(2)


def loss_of(scores, targets):
    """The mean over all bytes, in nats; float32, since small differences of large sums matter here."""
    return functional.cross_entropy(scores.flatten(0, 1).float(), targets.flatten())


def make_optimizer(parameters, options):
    """AdamW with GPT-3's settings; vectors, that is biases and norms, do not decay."""
    parameters = [parameter for parameter in parameters if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in parameters if parameter.dim() > 1]},
        {"params": [parameter for parameter in parameters if parameter.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.95), weight_decay=options.weight_decay)


def warmup_then_cosine(optimizer, num_warmup, num_steps):
    """To a tenth of the rate at the end."""

    def factor(step):
        if step < num_warmup:
            return (step + 1) / num_warmup
        done = min(1.0, (step - num_warmup) / max(1, num_steps - num_warmup))
        return 0.1 + 0.45 * (1 + math.cos(math.pi * done))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


class Pace:
    """Tokens a second of all ranks since it began; evaluation does not count."""

    def __init__(self, tokens_a_step, step):
        self.tokens_a_step = tokens_a_step
        self.begin(step)

    def begin(self, step):
        self.first_step, self.begin_s = step, time.perf_counter()

    def at(self, step):
        return (step - self.first_step) * self.tokens_a_step / (time.perf_counter() - self.begin_s)


def to_device(numbers, ctx):
    return numbers.to(ctx.device, non_blocking=True)


def say(ctx, text):
    if ctx.is_first:
        print(text, flush=True)


if __name__ == "__main__":
    main()
