"""Train a ResNet on multispectral patches with several labels each, as in BigEarthNet.

    topout run -n 2 bigearth.py --small                  # a small net on made-up patches, a minute on a CPU
    python bigearth_data.py pack BigEarthNet-v1.0 packs  # once
    topout run bigearth.py --data packs                  # all GPUs of this machine
    srun -N 4 --ntasks-per-node 4 python bigearth.py --data packs --checkpoints checkpoints

Twelve bands of 120, 60 and 20 pixels become 12 channels of 120x120; 1 to 12 of 43 labels are told, each on its own.
Not for pictures with one class each: see resnet50.py. The page is docs/recipe-bigearth.md.
"""

import argparse
import math
import tempfile
import time
from pathlib import Path

import torch
from torch.nn import functional

import topout
from topout.api.large_batch import BatchRule, Schedule
from topout.recipes import bigearth_data as patches
from topout.recipes.bigearth_input import make_input, mixed_up, prepared, turned
from topout.recipes.bigearth_score import f1_scores, label_counts, mean_average_precision
from topout.recipes.epochs import batches_behind, check_enough, open_checkpoints
from topout.recipes.resnet50_model import ResNet
from topout.train.compute import Compute
from topout.train.evaluate import mean, per_sample

NUM_LABELS = len(patches.LABELS)
BASE_BATCH = 256


def number_or_word(text):
    return int(text) if text.isdecimal() else {"on": True, "off": False}.get(text, text)


def parse_options(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a folder with packs train, val and test, or one of patches")
    parser.add_argument("--lists", type=Path, help="train.csv, val.csv and test.csv, for a folder of patches")
    parser.add_argument("--small", action="store_true", help="a small net, and made-up patches without --data")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch-size", type=int, help="patches of a batch on each rank")
    parser.add_argument("--size", type=int, help="height and width of the network's input")
    parser.add_argument("--workers", type=int, help="processes that read, for a folder of patches")
    parser.add_argument("--optimizer", default="adamw", choices=("adamw", "sgd", "lars", "lamb"))
    parser.add_argument("--lr", type=float, help=f"for {BASE_BATCH} patches a step")
    parser.add_argument("--rule", choices=("linear", "sqrt"), help="how the rate grows with the patches of a step")
    parser.add_argument("--warmup-epochs", type=float)
    parser.add_argument("--weight-decay", type=float, help="1e-2 for adamw and lamb, 1e-4 for sgd and lars")
    parser.add_argument("--mix-up", type=float, default=0.2, help="alpha of mix-up; 0: none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoints", type=Path, help="save there and go on from there; a folder all ranks see")
    parser.add_argument("--every", default="10m", type=number_or_word, help="time or steps between checkpoints")
    parser.add_argument("--precision", default="auto", help="auto, fp32, bf16, fp16")
    parser.add_argument("--compile", default="auto", type=number_or_word, help="auto, on, off, or a mode of it")
    parser.add_argument("--accumulate", type=int, default=1, help="batches before each step")
    options = parser.parse_args(arguments)
    if not (options.data or options.small):
        parser.error("one of --data and --small is needed")
    # Adam's and LAMB's steps are normalised already, so their rates grow with the noise, by the root
    options.rule = options.rule or ("linear" if options.optimizer == "sgd" else "sqrt")
    rate = {"adamw": 1e-3, "sgd": 0.1, "lars": 0.2, "lamb": 4e-3}[options.optimizer]
    decay = 1e-2 if options.optimizer in ("adamw", "lamb") else 1e-4
    defaults = (8, 8, 60, 4 * rate, 0, 1.0) if options.small else (100, 256, patches.SIZE, rate, 8, 5.0)
    names = ("epochs", "batch_size", "size", "lr", "workers", "warmup_epochs", "weight_decay")
    for name, value in zip(names, (*defaults, decay), strict=True):
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def main():
    options = parse_options()
    ctx = topout.init(seed=options.seed)
    torch.manual_seed(options.seed)
    with tempfile.TemporaryDirectory(prefix="topout-bigearth-") as folder:
        if not options.data:
            options.data = Path(folder)
            patches.make_patches(options.data, 320)
        train(options, ctx)
    ctx.close()


def train(options, ctx):
    batches, validation, test = make_input(options, ctx)
    depths, width = ((1, 1, 1, 1), 16) if options.small else ((3, 4, 6, 3), 64)  # the latter is ResNet-50's
    model = ResNet(depths, width, NUM_LABELS, channels=len(patches.BANDS))
    # about 3 of 43 labels are true, and the network need not begin by learning that
    torch.nn.init.constant_(model.fc.bias, -math.log(NUM_LABELS / 3 - 1))
    model = model.to(ctx.device)
    optimizer = make_optimizer(model, options, ctx)
    compute = Compute(
        precision=options.precision, compile=options.compile, accumulate=options.accumulate, dynamic_shapes=False
    )
    compute.apply(model, optimizer)
    model, optimizer, batches = ctx.wrap(model, optimizer, batches)
    check_enough(batches, options)
    stepper = compute.stepper(model, optimizer, ctx.place)
    steps_per_epoch = math.ceil(len(batches) / options.accumulate)
    num_steps = options.epochs * steps_per_epoch
    num_warmup = min(round(options.warmup_epochs * steps_per_epoch), num_steps - 1)
    schedule = Schedule(steps=num_steps, warmup_steps=num_warmup, decay="cosine").scheduler(optimizer)
    torch.manual_seed(options.seed + 1 + ctx.rank)  # ranks turn and mix their patches differently
    checkpoints = open_checkpoints(options, ctx, batches, schedule, stepper)
    for epoch in range(batches.state_dict()["epoch"], options.epochs):
        # after a restart some batches of the epoch are behind us
        done = batches_behind(batches, options.batch_size * ctx.world_size)
        loss, rate = train_epoch(
            model, batches, stepper, ctx, done=done, schedule=schedule, checkpoints=checkpoints, options=options
        )
        stepper.settle()
        say(ctx, f"epoch {epoch + 1:2d}/{options.epochs}  loss {loss:.4f}  {rate:,.0f} patches/s")
        if topout.should_stop():
            break
        say(ctx, f"  val   {told(evaluate(model, validation, stepper, ctx, options))}")
    if checkpoints is not None:
        checkpoints.save()
        checkpoints.close()
    if not topout.should_stop():
        say(ctx, f"test  {told(evaluate(model, test, stepper, ctx, options))}")


def train_epoch(model, batches, stepper, ctx, *, done, schedule, checkpoints, options):
    """One pass, or the rest of one: the mean loss of this rank, and patches a second of all ranks."""
    model.train()
    total = torch.zeros((), device=ctx.device)
    begin_s, number = time.perf_counter(), done
    for number, batch in enumerate(batches, done + 1):
        bands, labels = turned(*prepared(batch, ctx.device, options.size))
        bands, labels = mixed_up(bands, labels, options.mix_up)
        with stepper.forward(is_last=number == len(batches)):
            # summed over labels, so that the size of a step does not depend on how many there are
            loss = functional.binary_cross_entropy_with_logits(model(bands), labels, reduction="none").sum(1).mean()
        has_stepped = stepper.backward(loss)
        if has_stepped:
            schedule.step()
            if checkpoints is not None:
                checkpoints.step()
        total += loss.detach()
        # between batches of a step the gradients of the first ones would be lost
        if has_stepped and topout.should_stop():
            break
    mean_loss = total.item() / max(number - done, 1)  # waits for the device
    return mean_loss, (number - done) * options.batch_size * ctx.world_size / (time.perf_counter() - begin_s)


def evaluate(model, batches, stepper, ctx, options):
    """Each patch once, on some rank; average precision needs all scores together, so rows are gathered."""

    def step(batch):
        bands, labels = prepared(batch, ctx.device, options.size)
        with stepper.autocast():
            scores = model(bands).float()
        are_true = labels > 0.5
        return {
            "loss": mean(functional.binary_cross_entropy_with_logits(scores, labels, reduction="none").sum(1)),
            "counts": label_counts(scores > 0, are_true),  # a probability above one half
            "scores": per_sample(scores),
            "are_true": per_sample(are_true),
        }

    found = ctx.evaluate(step, batches)
    ranked = mean_average_precision(found["scores"], found["are_true"])
    return {"loss": found["loss"], "mAP": ranked, **f1_scores(found["counts"])}


def make_optimizer(model, options, ctx):
    """The rate follows the batch of all ranks; biases and BatchNorm do not decay."""
    patches_a_step = options.batch_size * ctx.world_size * options.accumulate
    rate = BatchRule(batch=patches_a_step, rule=options.rule, base=(BASE_BATCH, options.lr)).rate
    decaying = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [{"params": decaying, "weight_decay": options.weight_decay}, {"params": others, "weight_decay": 0.0}]
    if options.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=rate)
    if options.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=0.9, nesterov=True)
    return (
        topout.LARS(groups, lr=rate, momentum=0.9, trust=0.02)
        if options.optimizer == "lars"
        else topout.LAMB(groups, lr=rate)
    )


def told(found):
    return f"mAP {found['mAP']:.4f}  F1 {found['f1_micro']:.4f} micro {found['f1_macro']:.4f} macro"


def say(ctx, text):
    if ctx.is_first:
        print(text, flush=True)


if __name__ == "__main__":
    main()
