"""Train ResNet-50 on images: one CPU, one GPU, or many nodes, from the same script.

    python resnet50.py --synthetic                          # what this machine can do at most
    topout run resnet50.py --data imagenet                  # imagenet/train and imagenet/val: packs or class folders
    srun -N 4 --ntasks-per-node 4 python resnet50.py --data imagenet --checkpoints checkpoints
    topout run -n 2 resnet50.py --small                     # a small net on made-up JPEGs, a minute on a CPU

Not the shortest way to an accuracy: crops, schedule and 90 epochs are the plain recipe of 2017 (Goyal et al.,
https://arxiv.org/abs/1706.02677), with label smoothing and cosine decay. See docs/recipe-resnet50.md.
"""

import argparse
import math
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import topout
from topout.recipes import resnet50_input as images_input
from topout.recipes.epochs import batches_behind, check_enough, open_checkpoints
from topout.recipes.resnet50_model import ResNet
from topout.train.compute import Compute
from topout.train.evaluate import mean
from topout.train.precision import resolved

SWITCHES = (
    "precision", "channels_last", "compile", "cudnn_benchmark", "fused_optimizer", "tf32", "onednn_backward",
    "checkpoint_activations", "accumulate",
)  # fmt: skip


def number_or_word(text):
    return int(text) if text.isdecimal() else {"on": True, "off": False}.get(text, text)


def parse_options(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--data", type=Path, help="a folder with train and val: packs, or folders of classes of JPEGs")
    source.add_argument("--synthetic", action="store_true", help="random numbers on the device: speed without input")
    parser.add_argument("--small", action="store_true", help="a small net, and made-up JPEGs without --data")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--steps", type=int, default=100, help="in an epoch of --synthetic")
    parser.add_argument("--batch-size", type=int, help="images of a batch on each rank")
    parser.add_argument("--size", type=int, help="height and width of images")
    parser.add_argument("--workers", type=int, help="processes that decode, for folders of JPEGs")
    parser.add_argument("--lr", type=float, help="for 256 images a step; it grows with the batch of all ranks")
    parser.add_argument("--warmup-epochs", type=float, default=5.0)
    parser.add_argument("--weight-decay", type=float, default=5e-5)
    parser.add_argument("--label-smoothing", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoints", type=Path, help="save there and go on from there; a folder all ranks see")
    parser.add_argument("--every", default="10m", type=number_or_word, help="time or steps between checkpoints")
    parser.add_argument("--precision", default="auto", help="auto, fp32, bf16, fp16")
    parser.add_argument("--compile", default="auto", type=number_or_word, help="auto, on, off, or a mode of it")
    parser.add_argument("--no-channels-last", dest="channels_last", action="store_false")
    parser.add_argument("--no-fused-optimizer", dest="fused_optimizer", action="store_false")
    parser.add_argument("--no-tf32", dest="tf32", action="store_false")
    parser.add_argument("--no-cudnn-benchmark", dest="cudnn_benchmark", action="store_false")
    parser.add_argument(
        "--onednn-backward", default=True, type=number_or_word, help="on, off, auto: on CPUs, where it is faster"
    )
    parser.add_argument(
        "--folded-stem", type=int, choices=(0, 12, 16), help="channels of the first convolution: 16 on a GPU, else 3"
    )
    parser.add_argument("--checkpoint-activations", nargs="*", default=[], metavar="NAME", help="such as layer1 layer2")
    parser.add_argument("--accumulate", type=int, default=1, help="batches before each step")
    options = parser.parse_args(arguments)
    if not (options.data or options.synthetic or options.small):
        parser.error("one of --data, --synthetic and --small is needed")
    # epochs, images of a batch, pixels, rate, workers
    defaults = (6, 16, 64, 0.8, 0) if options.small else (90, 256, 224, 0.1, images_input.default_workers())
    for name, value in zip(("epochs", "batch_size", "size", "lr", "workers"), defaults, strict=True):
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.warmup_epochs = 1.0 if options.small else options.warmup_epochs
    options.epochs = 1 if options.synthetic else options.epochs
    return options


def main():
    options = parse_options()
    ctx = topout.init(seed=options.seed)
    torch.manual_seed(options.seed)
    with tempfile.TemporaryDirectory(prefix="topout-resnet50-") as folder:
        if not options.data and not options.synthetic:
            options.data = Path(folder)
            images_input.make_small_folders(options.data)
        train(options, ctx)
    ctx.close()


def train(options, ctx):
    options.dtype = torch.bfloat16 if resolved(options.precision, ctx.device) == "bf16" else torch.float32
    batches, evaluation = make_input(options, ctx)
    num_classes = 1000 if options.synthetic else images_input.num_classes_of(options.data / "train")
    depths, width = ((1, 1, 1, 1), 16) if options.small else ((3, 4, 6, 3), 64)  # ResNet-50 is the latter
    if options.folded_stem is None:
        options.folded_stem = 16 if ctx.device.type == "cuda" and options.size % 2 == 0 else 0
    model = ResNet(depths, width, num_classes, options.folded_stem).to(ctx.device)
    optimizer = make_optimizer(model, options, ctx)
    compute = Compute(**{name: getattr(options, name) for name in SWITCHES}, dynamic_shapes=False)
    compute.apply(model, optimizer)
    model, optimizer, batches = ctx.wrap(model, optimizer, batches)
    check_enough(batches, options)
    stepper = compute.stepper(model, optimizer, ctx.place)
    steps_per_epoch = math.ceil(len(batches) / options.accumulate)
    schedule = warmup_then_cosine(optimizer, options.warmup_epochs * steps_per_epoch, options.epochs * steps_per_epoch)
    checkpoints = open_checkpoints(options, ctx, batches, schedule, stepper)
    accuracy, rate = None, 0.0
    for epoch in range(batches.state_dict()["epoch"], options.epochs):
        # after a restart some batches of the epoch are behind us
        done = batches_behind(batches, options.batch_size * ctx.world_size)
        loss, rate = train_epoch(
            model, batches, stepper, ctx, done=done, schedule=schedule, checkpoints=checkpoints, options=options
        )
        stepper.settle()
        said = f"epoch {epoch + 1:2d}/{options.epochs}  loss {loss:.4f}  {rate:,.0f} img/s on {ctx.world_size} ranks"
        is_stopping = topout.should_stop()
        if evaluation is not None and not is_stopping:
            accuracy = evaluate(model, evaluation, stepper, ctx)
            said += f"  accuracy {accuracy:.4f}"
        say(ctx, said)
        if is_stopping:
            break
    if checkpoints is not None:
        checkpoints.save()
        checkpoints.close()
    say(ctx, f"{rate:,.0f} img/s" if accuracy is None else f"accuracy {accuracy:.4f}")


def train_epoch(model, batches, stepper, ctx, *, done, schedule, checkpoints, options):
    """One pass, or the rest of one; the mean loss of this rank, and images a second of all without the first tenth."""
    model.train()
    criterion = nn.CrossEntropyLoss(label_smoothing=options.label_smoothing)
    total = torch.zeros((), device=ctx.device)
    begin, begin_s, number = done, time.perf_counter(), done
    for number, (images, labels) in enumerate(batches, done + 1):
        with stepper.forward(is_last=number == len(batches)):
            loss = criterion(model(to_device(images, ctx.device)), labels.to(ctx.device, non_blocking=True))
        has_stepped = stepper.backward(loss)
        if has_stepped:
            schedule.step()
            if checkpoints is not None:
                checkpoints.step()
        total += loss.detach()
        if number == done + len(batches) // 10 + 1 and number < len(batches):  # compiled and warm from here on
            wait(ctx.device)
            begin, begin_s = number, time.perf_counter()
        # between batches of a step the gradients of the first ones would be lost
        if has_stepped and topout.should_stop():
            break
    wait(ctx.device)
    rate = (number - begin) * options.batch_size * ctx.world_size / (time.perf_counter() - begin_s)
    return total.item() / max(number - done, 1), rate


def evaluate(model, batches, stepper, ctx):
    """The share of images whose class is the first guess: each image once, on some rank."""

    def step(batch):
        images, labels = batch
        with stepper.autocast():
            scores = model(to_device(images, ctx.device))
        return {"accuracy": mean(scores.argmax(1) == labels.to(ctx.device, non_blocking=True))}

    return ctx.evaluate(step, batches)["accuracy"]


def make_input(options, ctx):
    """Batches to train on, and to evaluate on if there is anything to learn."""
    if options.synthetic:
        return images_input.Synthetic(options, 1000, ctx), None
    return (
        images_input.training_batches(options.data / "train", options, ctx),
        images_input.evaluation_batches(options.data / "val", options, ctx),
    )


def make_optimizer(model, options, ctx):
    """SGD whose rate is proportional to the images of a step; biases and BatchNorm do not decay."""
    images_a_step = options.batch_size * ctx.world_size * options.accumulate
    decaying = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [{"params": decaying, "weight_decay": options.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.SGD(groups, lr=options.lr * images_a_step / 256, momentum=0.9, nesterov=True)


def warmup_then_cosine(optimizer, num_warmup, num_steps):
    def factor(step):
        if step < num_warmup:
            return (step + 1) / num_warmup
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - num_warmup) / max(1, num_steps - num_warmup))))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def to_device(images, device):
    """Costs nothing where they are there already, in this order."""
    return images.to(device, non_blocking=True, memory_format=torch.channels_last)


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def say(ctx, text):
    if ctx.is_first:
        print(text, flush=True)


if __name__ == "__main__":
    main()
