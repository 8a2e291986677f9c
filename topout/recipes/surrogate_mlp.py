"""Train a network to stand for an expensive function: rows of numbers in, one number out.

    topout run -n 2 surrogate_mlp.py --small               # 20,000 rows of the borehole function, a minute on a CPU
    topout run surrogate_mlp.py --data packs --export surrogate.safetensors --checkpoints checkpoints
    topout run surrogate_mlp.py --optimizer lamb --batch-size 65536
    srun -N 2 --ntasks-per-node 4 python surrogate_mlp.py --data packs --checkpoints checkpoints

Steps are tiny here, so what a step costs besides computing shows: a batch is one gather, never a row at a time. Not for
a few hundred rows: a Gaussian process does better there. See docs/recipe-surrogate-mlp.md.
"""

import argparse
import math
import time
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

import topout
from topout.api.large_batch import BatchRule, Schedule
from topout.recipes.epochs import check_enough, open_checkpoints
from topout.recipes.surrogate_mlp_data import make_input
from topout.train.checkpoint import to_safetensors
from topout.train.compute import Compute
from topout.train.evaluate import mean

BASE_BATCH = 1024


def number_or_word(text):
    return int(text) if text.isdecimal() else {"on": True, "off": False}.get(text, text)


def parse_options(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="packs train and test, or train.npz and test.npz; else made up")
    parser.add_argument("--small", action="store_true", help="a small net, and few rows without --data")
    parser.add_argument("--rows", type=int, help="to make up")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch-size", type=int, help="rows of a batch on each rank")
    parser.add_argument("--layers", type=int, help="hidden ones")
    parser.add_argument("--width", type=int)
    parser.add_argument("--optimizer", default="adamw", choices=("adamw", "sgd", "lars", "lamb"))
    parser.add_argument("--lr", type=float, help=f"for {BASE_BATCH} rows a step")
    parser.add_argument("--rule", choices=("linear", "sqrt"), help="how the rate grows with the rows of a step")
    parser.add_argument("--warmup-epochs", type=float)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoints", type=Path, help="save there and go on from there; a folder all ranks see")
    parser.add_argument("--every", default="10m", type=number_or_word, help="time or steps between checkpoints")
    parser.add_argument("--export", type=Path, help="write the weights as safetensors; needs --checkpoints")
    parser.add_argument(
        "--precision", default="fp32", help="auto, fp32, bf16, fp16: fewer bits cost digits of the answer"
    )
    parser.add_argument("--tf32", action="store_true", help="on GPUs: quicker, and three digits instead of seven")
    parser.add_argument("--compile", default="auto", type=number_or_word, help="auto, on, off, or a mode of it")
    options = parser.parse_args(arguments)
    if options.export and not options.checkpoints:
        parser.error("--export takes the weights from a checkpoint: give --checkpoints, too")
    options.rule = options.rule or ("linear" if options.optimizer == "sgd" else "sqrt")
    rate = {"adamw": 2e-3, "sgd": 0.2, "lars": 0.4, "lamb": 1e-2}[options.optimizer]
    defaults = (20_000, 20, 256, 3, 64, rate, 1.0) if options.small else (1_000_000, 100, 4096, 6, 512, rate, 5.0)
    names = ("rows", "epochs", "batch_size", "layers", "width", "lr", "warmup_epochs")
    for name, value in zip(names, defaults, strict=True):
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


class Surrogate(nn.Module):
    """Takes and gives numbers in their own units: what standardises them is part of the weights."""

    def __init__(self, num_inputs, num_layers, width):
        super().__init__()
        for name, size in (
            ("input_mean", num_inputs),
            ("input_std", num_inputs),
            ("output_mean", ()),
            ("output_std", ()),
        ):
            self.register_buffer(name, torch.zeros(size) if name.endswith("mean") else torch.ones(size))
        widths = [num_inputs, *[width] * num_layers]
        layers = [part for sizes in pairwise(widths) for part in (nn.Linear(*sizes), nn.SiLU())]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 1))

    def measure(self, inputs, output):
        """Means and spreads of the training rows; an input that never varies is left as it is."""
        for name, values in (("input", inputs.double()), ("output", output.double())):
            spread = values.std(0)
            getattr(self, f"{name}_mean").copy_(values.mean(0))
            getattr(self, f"{name}_std").copy_(torch.where(spread > 0, spread, torch.ones_like(spread)))

    def forward(self, inputs):
        standard = self.layers((inputs - self.input_mean) / self.input_std)
        return standard.squeeze(-1) * self.output_std + self.output_mean


def main():
    options = parse_options()
    ctx = topout.init(seed=options.seed)
    torch.manual_seed(options.seed)
    batches, test, some = make_input(options, ctx)
    model = Surrogate(some.inputs.shape[1], options.layers, options.width)
    model.measure(some.inputs, some.output)
    model = model.to(ctx.device)
    optimizer = make_optimizer(model, options, ctx)
    compute = Compute(precision=options.precision, tf32=options.tf32, compile=options.compile, dynamic_shapes=False)
    compute.apply(model, optimizer)
    model, optimizer, batches = ctx.wrap(model, optimizer, batches)
    check_enough(batches, options)
    stepper = compute.stepper(model, optimizer, ctx.place)
    num_steps = options.epochs * len(batches)
    num_warmup = min(round(options.warmup_epochs * len(batches)), num_steps - 1)
    schedule = Schedule(steps=num_steps, warmup_steps=num_warmup, decay="cosine").scheduler(optimizer)
    checkpoints = open_checkpoints(options, ctx, batches, schedule, stepper)
    spread = float(some.output.std())
    for epoch in range(batches.state_dict()["epoch"], options.epochs):
        loss, rate = train_epoch(
            model, batches, stepper, ctx, schedule=schedule, checkpoints=checkpoints, spread=spread
        )
        stepper.settle()
        say(ctx, f"epoch {epoch + 1:3d}/{options.epochs}  loss {loss:.6f}  {rate:,.0f} steps/s  "
            f"{rate * options.batch_size * ctx.world_size:,.0f} rows/s")  # fmt: skip
        if topout.should_stop():
            break
    if checkpoints is not None:
        checkpoints.save()
        checkpoints.close()
        if options.export and ctx.is_first:
            to_safetensors(options.checkpoints, options.export)
    if not topout.should_stop():
        r2, rmse = evaluate(model, test, stepper, ctx)
        say(ctx, f"test  R2 {r2:.6f}  RMSE {rmse:.4g}  (the output itself varies by {spread:.4g})")
    ctx.close()


def train_epoch(model, batches, stepper, ctx, *, schedule, checkpoints, spread):
    """One pass, or the rest of one: the mean loss of this rank in units of the output's spread, and steps a second."""
    model.train()
    total, num_steps = torch.zeros((), device=ctx.device), 0
    begin_s = time.perf_counter()
    for batch in batches:
        inputs, output = to_device(batch, ctx.device)
        with stepper.forward():
            loss = ((model(inputs) - output) / spread).square().mean()
        stepper.backward(loss)
        schedule.step()
        if checkpoints is not None:
            checkpoints.step()
        total += loss.detach()
        num_steps += 1
        if topout.should_stop():
            break
    mean_loss = total.item() / max(num_steps, 1)  # waits for the device
    return mean_loss, num_steps / (time.perf_counter() - begin_s)


def evaluate(model, batches, stepper, ctx):
    """R2 and RMSE over all test rows, each once: both from sums, in double precision."""

    def step(batch):
        inputs, output = to_device(batch, ctx.device)
        with stepper.autocast():
            error = model(inputs).double() - output
        output = output.double()
        return {"error": mean(error.square()), "output": mean(output), "square": mean(output.square())}

    found = ctx.evaluate(step, batches)
    variance = found["square"] - found["output"] ** 2
    return 1 - found["error"] / variance, math.sqrt(found["error"])


def make_optimizer(model, options, ctx):
    """The rate follows the batch of all ranks; biases do not decay."""
    rows_a_step = options.batch_size * ctx.world_size
    rate = BatchRule(batch=rows_a_step, rule=options.rule, base=(BASE_BATCH, options.lr)).rate
    weights = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    biases = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [{"params": weights, "weight_decay": options.weight_decay}, {"params": biases, "weight_decay": 0.0}]
    if options.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=rate)
    if options.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=0.9, nesterov=True)
    return (
        topout.LARS(groups, lr=rate, momentum=0.9, trust=0.02)
        if options.optimizer == "lars"
        else topout.LAMB(groups, lr=rate)
    )


def to_device(batch, device):
    return (batch[name].to(device, non_blocking=True) for name in ("inputs", "output"))


def say(ctx, text):
    if ctx.is_first:
        print(text, flush=True)


if __name__ == "__main__":
    main()
