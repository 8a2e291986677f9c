"""What a checkpoint costs training: topout beside torch's dcp.save and dcp.async_save, in one run, in turns.

    python benchmarks/checkpoint.py --out benchmarks/results            # 2 ranks on the CPU, Gloo
    python benchmarks/checkpoint.py --device cuda --ranks 1             # one GPU

A round takes K steps with one checkpoint of each kind among them, in random order, and K steps without. The stall is
the difference in wall time: it holds the call itself and the slow-down of the steps that follow while a thread writes.
Whatever is still being written after K steps is waited for before the next block and not counted, so K must be large
enough: "covered" says how often writing ended within the block. Its share is over the time of a blocking save of the
same state in the same round, topout's own and dcp.save's.
"""

import argparse
import json
import os
import platform
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

KINDS = ("none", "topout", "topout blocking", "dcp.async_save", "dcp.save")


# ---- one rank


def main_of_rank(args):
    import torch
    import torch.distributed as dist
    from torch import nn

    from topout.train.place import joined

    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if args.device == "cuda" else "gloo")
    torch.set_num_threads(1)
    place = joined(torch.device(args.device), local_rank=int(os.environ["LOCAL_RANK"]), local_world_size=args.ranks)
    torch.manual_seed(0)
    layers = [layer for _ in range(args.layers) for layer in (nn.Linear(args.width, args.width), nn.ReLU())]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers).to(args.device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    inputs = torch.randn(args.batch, args.width, device=args.device)

    def step():
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    for _ in range(3):
        step()
    savers = make_savers(args, model, optimizer, place)
    num_bytes = sum(p.numel() * p.element_size() for p in model.parameters()) * 3
    rounds = []
    chance = random.Random(1)
    for number in range(args.rounds + 1):
        order = list(KINDS)
        chance.shuffle(order)
        measured = {kind: block(args, step, savers[kind], dist) for kind in order}
        if number:  # the first one allocates staging memory and plans
            rounds.append(measured)
    check(savers["topout"], model, optimizer, step)
    if place.is_first:
        print(json.dumps({"rounds": rounds, "bytes": num_bytes}), flush=True)
    savers["topout"].close()
    dist.destroy_process_group()


def check(saver, model, optimizer, step):
    """Steps taken while it was being written must not have got into the checkpoint: else no figure counts."""
    import torch

    def values():
        kept = [value for state in optimizer.state.values() for value in state.values()]
        return [value.detach().clone() for value in [*model.state_dict().values(), *kept]]

    step()
    expected = values()
    saver.save()
    for _ in range(3):
        step()
    saver.wait()
    assert not all(torch.equal(now, then) for now, then in zip(values(), expected, strict=True))
    saver.checkpoints.restore()
    assert all(torch.equal(now, then) for now, then in zip(values(), expected, strict=True))


def block(args, step, saver, dist):
    """Seconds of K steps with a checkpoint after the first, of the call alone, and whether writing ended in time."""
    synchronise(args)
    dist.barrier()
    start = time.perf_counter()
    step()
    called = time.perf_counter()
    saver.save()
    call_s = time.perf_counter() - called
    for _ in range(args.steps - 1):
        step()
    synchronise(args)
    dist.barrier()
    wall_s = time.perf_counter() - start
    covered = saver.is_done()
    saver.wait()
    dist.barrier()
    return {"wall_s": wall_s, "call_s": call_s, "covered": covered}


def synchronise(args):
    if args.device == "cuda":
        import torch

        torch.cuda.synchronize()


def make_savers(args, model, optimizer, place):
    topout = Topout(args, model, optimizer, place)
    return {
        "none": Nothing(),
        "topout": topout,
        "topout blocking": Blocking(topout),
        "dcp.save": Dcp(args, model, optimizer, is_async=False),
        "dcp.async_save": Dcp(args, model, optimizer, is_async=True),
    }


class Nothing:
    def save(self):
        pass

    def is_done(self):
        return True

    def wait(self):
        pass


class Topout(Nothing):
    def __init__(self, args, model, optimizer, place):
        from topout.train.checkpoint import Checkpoints

        state = {"model": model, "optimizer": optimizer}
        self.checkpoints = Checkpoints(Path(args.folder) / "topout", state=state, place=place, every=None, keep=1)

    def save(self):
        self.checkpoints.num_steps += 1
        self.checkpoints.save()

    def is_done(self):
        return self.checkpoints._writing is None or self.checkpoints._writing.is_done

    def wait(self):
        self.checkpoints._settle()
        assert self.checkpoints._failure is None, self.checkpoints._failure

    def close(self):
        self.checkpoints.close()


class Blocking(Nothing):
    def __init__(self, saver):
        self.saver = saver

    def save(self):
        self.saver.save()
        self.saver.wait()


class Dcp(Nothing):
    """As its documentation shows it; the previous one is deleted outside of the time measured."""

    def __init__(self, args, model, optimizer, *, is_async):
        import torch.distributed as dist

        self.folder = Path(args.folder) / ("async" if is_async else "blocking")
        self.model, self.optimizer, self.is_async, self.future = model, optimizer, is_async, None
        self.group = dist.new_group(backend="gloo")
        self.is_first = dist.get_rank() == 0

    def save(self):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.model, self.optimizer)
        state = {"model": model, "optimizer": optimizer}
        writer = dcp.FileSystemWriter(self.folder, sync_files=True)
        if self.is_async:
            self.future = dcp.async_save(state, storage_writer=writer, process_group=self.group)
        else:
            dcp.save(state, storage_writer=writer, process_group=self.group)

    def is_done(self):
        return self.future is None or self.future.done()

    def wait(self):
        import torch.distributed as dist

        if self.future is not None:
            self.future.result()
        dist.barrier(self.group)
        if self.is_first:
            shutil.rmtree(self.folder, ignore_errors=True)


# ---- all ranks, and what came of it


def start(args):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    ranks = []
    for rank in range(args.ranks):
        variables = {
            **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(args.ranks),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
        }  # fmt: skip
        command = [sys.executable, __file__, *sys.argv[1:], "--as-rank", "--folder", args.folder]
        ranks.append(subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True))
    outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit("a rank failed")
    return json.loads(outputs[0].strip().splitlines()[-1])


def table(measured, args):
    rounds = measured["rounds"]
    lines = [
        f"{measured['bytes'] / 1e6:.0f} MB of parameters and Adam's state, {args.ranks} ranks on {args.device}, "
        f"{args.steps} steps a block, {len(rounds)} rounds, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; "
        f"step {statistics.median(r['none']['wall_s'] for r in rounds) / args.steps * 1e3:.1f} ms, medians",
        "",
        "| kind | in the call, ms | stall in all, ms | of topout's blocking save | of dcp.save | covered |",
        "|---|---|---|---|---|---|",
    ]
    for kind in KINDS[1:]:
        stalls = [r[kind]["wall_s"] - r["none"]["wall_s"] for r in rounds]
        own = statistics.median(s / r["topout blocking"]["call_s"] for s, r in zip(stalls, rounds, strict=True))
        dcp = statistics.median(s / r["dcp.save"]["call_s"] for s, r in zip(stalls, rounds, strict=True))
        call_ms = statistics.median(r[kind]["call_s"] for r in rounds) * 1e3
        covered = sum(r[kind]["covered"] for r in rounds)
        lines.append(
            f"| {kind} | {call_ms:.0f} | {statistics.median(stalls) * 1e3:.0f} | {own:.0%} | {dcp:.0%} | "
            f"{covered} of {len(rounds)} |"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=18)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--out")
    parser.add_argument("--folder", help="where checkpoints are written; a temporary folder unless given")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_rank:
        main_of_rank(args)
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        args.folder = folder
        measured = start(args)
    text = table(measured, args)
    print(text)
    if args.out:
        name = f"{date.today()}-checkpoint-{args.device}-{platform.node() or 'machine'}.md"
        Path(args.out, name).write_text(f"# {__doc__.splitlines()[0]}\n\n{text}\n")


if __name__ == "__main__":
    main()
