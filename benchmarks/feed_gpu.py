"""What share of its synthetic rate one GPU trains at from JPEG files: ResNet-50, stock DataLoader and topout.Loader.

    python benchmarks/feed_gpu.py --out benchmarks/results --machine h200       # all of it, some minutes
    topout run -n 1 benchmarks/feed_gpu.py --only topout                        # one way, recorded

One process, one compiled model, batches of 512, bfloat16, channels last. The synthetic rate is taken before and after.
Images lie in memory (--folder), so that input costs what software makes it cost. Needs torchvision.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import time
from datetime import date
from pathlib import Path

import torch
import torchvision

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from feed_images import make_images

from topout.feed.augment import IMAGENET_MEAN, IMAGENET_STD, train_images
from topout.feed.loader import Loader

BATCH = 512
NUM_DISTINCT, NUM_COPIES = 2048, 24


def prepare(folder):
    """Images in class folders, each several times under other names, and a pack of them."""
    images, pack = folder / "images", folder / "pack"
    if not (folder / "made").exists():
        make_images(images, NUM_DISTINCT, processes=os.cpu_count())
        for path in sorted(images.glob("c*/*.jpg")):
            for copy in range(1, NUM_COPIES):
                shutil.copy(path, path.with_name(f"{path.stem}-{copy}.jpg"))
        (folder / "made").touch()
    if not (pack / "pack.json").exists():
        from topout.cli.main import main

        start_s = time.perf_counter()
        try:
            main(["pack", str(images), str(pack)])
        except SystemExit as ended:
            assert not ended.code, "packing failed"
        print(f"packed in {time.perf_counter() - start_s:.1f} s", flush=True)
    return images, pack


class Training:
    """A compiled ResNet-50 and its optimizer."""

    def __init__(self):
        torch.backends.cudnn.benchmark = True
        self.model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, fused=True)
        self.loss_of = torch.compile(self._loss)

    def _loss(self, images, labels):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return torch.nn.functional.cross_entropy(self.model(images), labels)

    def step(self, images, labels):
        self.optimizer.zero_grad(set_to_none=True)
        self.loss_of(images, labels).backward()
        self.optimizer.step()


def synthetic(training, num_steps):
    images = torch.randn(BATCH, 3, 224, 224, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 100, (BATCH,), device="cuda")
    for _ in range(5):
        training.step(images, labels)
    torch.cuda.synchronize()
    start_s = time.perf_counter()
    for _ in range(num_steps):
        training.step(images, labels)
    torch.cuda.synchronize()
    return num_steps * BATCH / (time.perf_counter() - start_s)


def epoch(training, batches):
    """Images a second, from asking for the first batch to the end of the last step."""
    start_s, num_images = time.perf_counter(), 0
    for images, labels in batches:
        training.step(images, labels)
        num_images += len(images)
    torch.cuda.synchronize()
    return num_images / (time.perf_counter() - start_s)


def from_topout(pack, decode):
    return Loader(
        pack, BATCH, transform=train_images(224), dtype="bfloat16", device="cuda", decode=decode, prefetch=4
    )  # fmt: skip


def from_stock(images):
    transforms = torchvision.transforms
    steps = transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD),
        ]
    )
    loader = torch.utils.data.DataLoader(
        torchvision.datasets.ImageFolder(images, steps), BATCH, shuffle=True, num_workers=os.cpu_count() - 1,
        pin_memory=True, persistent_workers=True, drop_last=True,
    )  # fmt: skip

    class OnDevice:
        def __iter__(self):
            for batch, labels in loader:
                images = batch.to("cuda", dtype=torch.bfloat16, non_blocking=True)
                yield images.to(memory_format=torch.channels_last), labels.cuda(non_blocking=True)

    return OnDevice()


def run(args):
    images, pack = prepare(args.folder)
    training = Training()
    results = {} if args.only else {"synthetic before": [synthetic(training, 60)]}
    ways = {
        "topout, host decodes": lambda: from_topout(pack, "host"),
        "topout, chosen by itself": lambda: from_topout(pack, "auto"),
        "topout, device decodes": lambda: from_topout(pack, "device"),
        "stock DataLoader": lambda: from_stock(images),
    }
    if args.only:
        ways = {name: make for name, make in ways.items() if args.only in name}
    for name, make in ways.items():
        batches = make()
        count = args.epochs if "topout" in name and "device" not in name else 1
        try:
            results[name] = [epoch(training, batches) for _ in range(count)]
        except Exception as error:
            results[name] = f"{type(error).__name__}: {error}"[:300]
        print(name, results[name], flush=True)
        if isinstance(batches, Loader):
            print(batches.counters(), "threads", batches.num_threads, flush=True)
            batches.close()
    if not args.only:
        results["synthetic after"] = [synthetic(training, 60)]
    return results


def table(results, machine):
    ceiling = statistics.mean(results["synthetic before"] + results["synthetic after"])
    lines = [
        "# What share of its synthetic rate one GPU trains at from JPEG files",
        f"{date.today()}; {machine}: {torch.cuda.get_device_name()}, {os.cpu_count()} cores;",
        f"torch {torch.__version__}, ResNet-50, bfloat16, compiled, batch {BATCH};",
        f"{NUM_DISTINCT * NUM_COPIES} JPEGs of 500x375 in memory ({NUM_DISTINCT} distinct ones);",
        "made by `benchmarks/feed_gpu.py`.",
        "",
        "| input | img/s by epoch | of synthetic |",
        "|---|---|---|",
    ]
    for name, rates in results.items():
        if isinstance(rates, str):
            lines.append(f"| {name} | {rates} | |")
            continue
        listed = ", ".join(f"{rate:,.0f}" for rate in rates)
        lines.append(f"| {name} | {listed} | {', '.join(f'{rate / ceiling:.1%}' for rate in rates)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm/topout-feed"))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--only", help="a word of the way to take")
    parser.add_argument("--machine", default=f"{os.cpu_count()}-cores")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    measured = run(arguments)
    if arguments.only:
        print(json.dumps(measured))
    else:
        text = table(measured, arguments.machine)
        print(text)
        if arguments.out:
            arguments.out.mkdir(parents=True, exist_ok=True)
            (arguments.out / f"{date.today()}-feed-{arguments.machine}.md").write_text(text)
