"""Runs public scripts as they are under topout, and shows how each ended.

    python benchmarks/public_scripts.py --horovod ~/horovod --examples ~/examples --out benchmarks/results

The two folders are checkouts of github.com/horovod/horovod and github.com/pytorch/examples; nothing of them is changed
or kept here. Their scripts take MNIST from torchvision, which has no build for CPUs everywhere and would download: a
package of that name stands in for it and serves Debian's dataset-fashion-mnist, whose files have the same form. So
accuracies are Fashion-MNIST's. Not for speed: whatever else the machine does is in the seconds.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
TORCHVISION = {
    "__init__.py": "",
    "transforms.py": """
import numpy
import torch


class Compose:
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, image):
        for step in self.steps:
            image = step(image)
        return image


class ToTensor:
    def __call__(self, image):
        return torch.from_numpy(numpy.array(image, numpy.float32) / 255)[None]


class Normalize:
    def __init__(self, mean, std):
        self.mean, self.std = mean[0], std[0]

    def __call__(self, image):
        return (image - self.mean) / self.std
""",
    "datasets.py": """
import gzip
from pathlib import Path

import numpy
from torch.utils.data import Dataset

FOLDER = Path("/usr/share/datasets/fashion-mnist")


class MNIST(Dataset):
    def __init__(self, root, train=True, download=False, transform=None):
        part = "train" if train else "t10k"
        (images,) = FOLDER.glob(f"{part}-images*")
        (labels,) = FOLDER.glob(f"{part}-labels*")
        self.images = numpy.frombuffer(read(images), numpy.uint8, offset=16).reshape(-1, 28, 28)
        self.labels = numpy.frombuffer(read(labels), numpy.uint8, offset=8)
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, number):
        return self.transform(self.images[number]), int(self.labels[number])


def read(path):
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
""",
}


def commands(horovod, examples):
    """(what it is, where it comes from, the words after `topout`)."""
    if horovod:
        yield "Horovod's MNIST", horovod, ["run", "-n", "2", "examples/pytorch/pytorch_mnist.py", "--epochs", "1"]
        adasum = ["examples/adasum/adasum_small_model.py", "--op", "Average"]
        yield "Horovod's small model", horovod, ["run", "-n", "2", *adasum]
    if examples:
        mnist = ["mnist/main.py", "--epochs", "1"]
        yield "PyTorch's MNIST, for one device", examples, ["run", "-n", "2", "--ddp", *mnist]
        yield "the same on one rank", examples, ["run", "-n", "1", *mnist]


def commit_of(folder):
    found = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip()[:12] or "?"


def run(words, folder, scratch):
    """Exit code, seconds, and what it said; scripts write beside themselves, so in a folder of their own."""
    environ = {**os.environ, "PYTHONPATH": f"{scratch}:{REPOSITORY}"}
    script = next(number for number, word in enumerate(words) if word.endswith(".py"))
    words = [*words[:script], str(folder / words[script]), *words[script + 1 :]]
    start_s = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "topout", *words], cwd=scratch, env=environ, capture_output=True, text=True, check=False
    )
    return done.returncode, time.perf_counter() - start_s, done.stdout + done.stderr


def told(said):
    """The script's last figures, and topout's verdict."""
    figures = [line.strip() for line in said.splitlines() if re.search(r"ccuracy|[Ll]oss", line)]
    verdict = next((line.strip() for line in said.splitlines() if re.match(r"[A-Z-]{6,}  ", line)), "no verdict")
    return (figures or ["nothing"])[-1], re.sub(r" {2,}", "  ", verdict)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--horovod", type=Path)
    parser.add_argument("--examples", type=Path)
    parser.add_argument("--machine", default=f"{os.cpu_count()}-cores")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    lines = [
        "# Public scripts, unchanged, under topout",
        f"{date.today()}; {args.machine}, Python {platform.python_version()}; made by `benchmarks/public_scripts.py`. "
        "Fashion-MNIST stands in for MNIST.",
        "",
        "| script | command | commit | exit code | seconds | its last figure | verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    codes = []
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        (scratch / "torchvision").mkdir()
        for file, text in TORCHVISION.items():
            (scratch / "torchvision" / file).write_text(text)
        for what, folder, words in commands(args.horovod, args.examples):
            code, seconds, said = run(words, folder.resolve(), scratch)
            figure, verdict = told(said)
            codes.append(code)
            lines.append(
                f"| {what} | `topout {' '.join(words)}` | {commit_of(folder)} | {code} | {seconds:.0f} "
                f"| {figure} | {verdict} |"
            )
            print(lines[-1], flush=True)
            if code:
                print(said[-3000:], file=sys.stderr)
    if args.out:
        (args.out / f"{date.today()}-public-scripts-{args.machine}.md").write_text("\n".join(lines) + "\n")
    sys.exit(any(codes))


if __name__ == "__main__":
    main()
