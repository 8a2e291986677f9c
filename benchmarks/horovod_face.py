"""Steps a second of the Horovod face against plain DDP, interleaved in one pair of processes over Gloo.

    python benchmarks/horovod_face.py --out benchmarks/results

Starts its own 2 ranks on this machine. Both train copies of one model on the same batches; rounds alternate, so that
whatever else the machine does hits both. Not a measure of the machine: only the ratio means anything.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from statistics import median

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))
sys.path.insert(0, str(REPOSITORY / "benchmarks"))

NUM_RANKS = 2
KINDS = {"resnet18": "ResNet-18, 62 tensors", "deep": "deep MLP, 202 tensors"}


def one_rank(arguments):
    import horovod.torch as hvd
    import torch
    from step_models import make
    from torch.nn import functional
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    hvd.init()
    made = {name: make(arguments.model) for name in ("horovod", "DDP")}
    twins = {name: model for name, (model, _, _) in made.items()}
    optimizers = {name: torch.optim.SGD(twin.parameters(), lr=0.001, momentum=0.9) for name, twin in twins.items()}
    optimizers["horovod"] = hvd.DistributedOptimizer(
        optimizers["horovod"], named_parameters=twins["horovod"].named_parameters()
    )
    twins["DDP"] = DistributedDataParallel(twins["DDP"])

    cpu_seconds = {name: [] for name in twins}

    def train(name, num_steps):
        _, inputs, labels = made[name]
        hvd.barrier()
        start, start_cpu = time.perf_counter(), time.process_time()
        for _ in range(num_steps):
            optimizers[name].zero_grad()
            functional.cross_entropy(twins[name](inputs), labels).backward()
            optimizers[name].step()
        hvd.barrier()
        cpu_seconds[name].append((time.process_time() - start_cpu) / num_steps)
        return (time.perf_counter() - start) / num_steps

    for name in twins:
        train(name, 3)
    seconds = {name: [] for name in twins}
    for round_number in range(arguments.rounds):
        for name in (list(twins), list(twins)[::-1])[round_number % 2]:
            seconds[name].append(train(name, arguments.steps))
    if hvd.rank() == 0:
        found = {"seconds": seconds, "cpu_seconds": cpu_seconds, "groups": optimizers["horovod"]._engine.num_groups}
        arguments.on_rank.write_text(json.dumps(found))


def measured(kind, rounds, steps):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    face = REPOSITORY / "topout" / "train" / "horovod" / "face"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        common = {
            **os.environ, "WORLD_SIZE": str(NUM_RANKS), "LOCAL_WORLD_SIZE": str(NUM_RANKS), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{REPOSITORY}:{face}",
        }  # fmt: skip
        words = [sys.executable, __file__, "--model", kind, "--rounds", rounds, "--steps", steps, "--on-rank", out]
        ranks = [
            subprocess.Popen(
                ["taskset", "-c", str(rank), *map(str, words)],
                env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(NUM_RANKS)
        ]
        assert [rank.wait() for rank in ranks] == [0] * NUM_RANKS
        return json.loads(out.read_text())


def table(results, machine, rounds, steps):
    from step import ratio

    lines = [
        "# Steps a second of the Horovod face against plain DDP",
        f"{date.today()}; {machine}; two ranks over Gloo, one core each; {rounds} rounds of {steps} steps in turns;",
        "made by `benchmarks/horovod_face.py`.",
        "",
        "| model | DDP | Horovod face | steps/s of DDP's (95 % interval) | CPU time of DDP's | groups |",
        "|---|---|---|---|---|---|",
    ]
    for kind, found in results.items():
        seconds, cpu = found["seconds"], found["cpu_seconds"]
        middle, low, high = ratio(seconds["DDP"], seconds["horovod"])
        lines.append(
            f"| {KINDS[kind]} | {1e3 * median(seconds['DDP']):.1f} ms | {1e3 * median(seconds['horovod']):.1f} ms "
            f"| {middle:.3f} ({low:.3f} to {high:.3f}) | {median(cpu['horovod']) / median(cpu['DDP']):.2f} "
            f"| {found['groups']} |"
        )
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--model", choices=KINDS)
    parser.add_argument("--machine", default=f"{os.cpu_count()}-cores")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--on-rank", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.on_rank:
        one_rank(args)
        return
    kinds = [args.model] if args.model else list(KINDS)
    text = table(
        {kind: measured(kind, args.rounds, args.steps) for kind in kinds}, args.machine, args.rounds, args.steps
    )
    print(text)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"{date.today()}-horovod-face-{args.machine}.md").write_text(text)


if __name__ == "__main__":
    main()
