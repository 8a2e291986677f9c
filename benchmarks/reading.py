"""How fast the half without torch is: help, starting a script, and explaining 64 ranks x 1,000 steps.

    python benchmarks/reading.py --out benchmarks/results            # about a minute

torch cannot be imported in any of the timed `topout` processes. The bare interpreter and torchrun stand beside.
"""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

RANKS, STEPS, BUCKETS = 64, 1000, 4
RUNS = 7
BLOCKER = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("torch is blocked here")
sys.meta_path.insert(0, NoTorch())
"""


def write_run(folder):
    """A run as 64 ranks on 16 hosts would leave it: input, backward, buckets, optimizer, step, counters."""
    from topout.record.writer import EventWriter
    from topout.schema.event import Kind, pack_code

    folder.mkdir(parents=True)
    (folder / "logs").mkdir()
    draw = random.Random(0)
    base = 10**12
    for rank in range(RANKS):
        writer = EventWriter(folder / f"rank-{rank:05d}.events", on_failure=print)
        host = f"n{rank // 4:02d}"
        writer.facts({"rank": rank, "host": host, "clock_pairs": [[base, 10**18], [base + 10**11, 10**18 + 10**11]]})
        bucket = pack_code(Kind.ARRIVAL, writer.name_id("all_reduce"))
        at = base
        for step in range(STEPS):
            input_ns, forward_ns = draw.randrange(2_000_000, 6_000_000), draw.randrange(20_000_000, 22_000_000)
            arrivals = [at + input_ns + forward_ns + 8_000_000 * (b + 1) for b in range(BUCKETS)]
            end = base + 70_000_000 * (step + 1)
            writer.append(pack_code(Kind.INPUT), at, input_ns, 32, 0)
            for number, arrival in enumerate(arrivals):
                writer.append(bucket, arrival, 0, 4 << 20, step * BUCKETS + number + 1)
            backward = at + input_ns + forward_ns
            writer.append(pack_code(Kind.BACKWARD), backward, end - 3_000_000 - backward, -1, -1)
            writer.append(pack_code(Kind.OPTIMIZER), end - 3_000_000, 2_900_000, -1, 0)
            writer.append(pack_code(Kind.STEP), at, end - at, -1, step)
            at = end
        writer.facts({"ended": True, "batch_size": 32, "num_workers": 2, "torch_version": "2.13.0"})
        writer.close()
    hosts = [{"name": f"n{h:02d}", "num_cores": 32, "memory_bytes": 128 << 30, "gpus": []} for h in range(RANKS // 4)]
    run = {
        "version": 1, "topout_version": "0.1.0", "command": ["topout", "run", "train.py"],
        "spec": {"script": "train.py"}, "origins": {}, "status": "finished", "started_at": f"{date.today()}T00:00:00Z",
        "duration_s": 70.0, "exit_code": 0, "hosts": hosts, "ranks": [], "versions": {}, "notes": [],
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(run))


def timed(command, env=None):
    """(seconds, peak MB) of one process."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    assert status == 0, f"{command} ended with {status}"
    return seconds, usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "block").mkdir()
        (folder / "block" / "sitecustomize.py").write_text(BLOCKER)
        (folder / "hello.py").write_text("print('hello')\n")
        run = folder / "runs" / "run"
        write_run(run)
        torchless = {**os.environ, "PYTHONPATH": str(folder / "block")}
        topout = str(Path(sys.executable).with_name("topout"))
        torchrun = str(Path(sys.executable).with_name("torchrun"))
        hello = str(folder / "hello.py")
        start = [topout, "run", "-n", "2", "--runs", str(folder / "r")]
        cases = {
            "`python hello.py`": ([sys.executable, hello], None),
            "`topout --help`": ([topout, "--help"], torchless),
            "`topout run -n 2 hello.py`, report included": ([*start, hello], torchless),
            "`topout run -n 2 --no-record --no-report hello.py`": (
                [*start, "--no-record", "--no-report", hello], torchless,
            ),
            "`torchrun --nproc-per-node 2 hello.py`": ([torchrun, "--nproc-per-node", "2", hello], None),
            f"`topout analyze` of {RANKS} ranks x {STEPS:,} steps, report included": (
                [topout, "analyze", str(run)], torchless,
            ),
        }  # fmt: skip
        results = {case: [] for case in cases}
        for _ in range(RUNS):  # interleaved, so that a slow minute meets all
            for case, (command, env) in cases.items():
                results[case].append(timed(command, env))
        size = sum(path.stat().st_size for path in run.glob("*.events")) / 1e6
        report = (run / "report.html").stat().st_size / 1e3
    lines = ["| command | median s | slowest s | peak MB |", "|---|---|---|---|"]
    for case, values in results.items():
        seconds, megabytes = zip(*values, strict=True)
        lines.append(f"| {case} | {statistics.median(seconds):.2f} | {max(seconds):.2f} | {max(megabytes):.0f} |")
    text = (
        f"# The half without torch\n{date.today()}; {os.cpu_count()} cores, {platform.machine()}, "
        f"Python {platform.python_version()}; {RUNS} interleaved runs; made by `benchmarks/reading.py`.\n\n"
        + "\n".join(lines)
        + f"\n\nThe {RANKS} event files hold {size:.0f} MB, the report {report:.0f} KB. No `topout` process could "
        "import torch.\n"
    )
    print(text)
    if options.out:
        (options.out / f"{date.today()}-reading-{os.cpu_count()}-cores.md").write_text(text)


if __name__ == "__main__":
    main()
