"""LARS and LAMB: what a step costs beside fused SGD and AdamW, how near the papers it is, and what it learns.

    python benchmarks/large_batch.py optimizers --out benchmarks/results       # CPU, 1 and 2 threads, some 2 minutes
    python benchmarks/large_batch.py optimizers --device cuda --machine h200 --out benchmarks/results
    python benchmarks/large_batch.py accuracy --out benchmarks/results         # Fashion-MNIST, some 10 minutes

`accuracy` needs the Debian package dataset-fashion-mnist. Peers are timed where they are installed:

    pip install --no-deps timm==1.0.30 torch_optimizer==0.3.0 pytorch_optimizer==4.1.0 pytorch_ranger==0.1.1

Every round steps all optimizers once in random order, so that only ratios within a round count.
"""

import argparse
import os
import sys
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import large_batch_accuracy
import large_batch_steps

from topout.schema.errors import TopoutError

HERE = Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["optimizers", "accuracy"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--no-accumulation", action="store_true", help="leave out batch 32,768 on the full set")
    parser.add_argument("--machine", default=f"{os.cpu_count()}-cores")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    try:
        if args.what == "optimizers":
            text = large_batch_steps.report(args.device, args.threads, args.rounds, args.machine)
        else:
            text = large_batch_accuracy.report(args.seeds, not args.no_accumulation, args.machine)
    except TopoutError as error:
        sys.exit(f"{error}\n  why  {error.why}\n  do   {error.do}")
    print(text)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"{date.today()}-large-batch-{args.what}-{args.machine}.md").write_text(text)


if __name__ == "__main__":
    main()
