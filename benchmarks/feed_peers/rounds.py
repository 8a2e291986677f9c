"""Measurements in fresh processes, interleaved: every round runs all rows of a case once, in a new random order.

The peak memory is sampled from outside, over the process tree. A row that fails keeps its place, with the reason.
"""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from feed_peers.environments import interpreter
from feed_peers.measure import descendants

ENTRY = Path(__file__).resolve().parents[1] / "feed.py"
LONGEST_S, LONGEST_WRITE_S = 900, 3600
QUIET = {
    "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
    "PYTHONWARNINGS": "ignore", "PYTHONDONTWRITEBYTECODE": "1",
}  # fmt: skip


class Memory(threading.Thread):
    """Peak resident and anonymous memory of a process tree. Shared pages count once a process, as `ps` counts them."""

    def __init__(self, process):
        super().__init__(daemon=True)
        self.process, self.is_over = process, threading.Event()
        self.peak_rss_mb = self.peak_anon_mb = 0.0

    def run(self):
        while not self.is_over.wait(0.1):
            rss_kb = anon_kb = 0
            for process in descendants(self.process):
                try:
                    status = Path(f"/proc/{process}/status").read_text()
                except OSError:
                    continue
                sizes = dict(re.findall(r"(VmRSS|RssAnon|RssShmem):\s+(\d+)", status))
                rss_kb += int(sizes.get("VmRSS", 0))
                anon_kb += int(sizes.get("RssAnon", 0)) + int(sizes.get("RssShmem", 0))
            self.peak_rss_mb = max(self.peak_rss_mb, rss_kb / 1024)
            self.peak_anon_mb = max(self.peak_anon_mb, anon_kb / 1024)


def in_fresh_process(environments, environment, spec):
    """The result of one measurement, or {"failed": reason}."""
    python = interpreter(environments, environment)
    if environment != "topout" and not (environments / environment / "installed").exists():
        failed = environments / f"{environment}.failed"
        why = failed.read_text() if failed.exists() else "run `benchmarks/feed.py install`"
        return {"failed": f"not installed: {why}"}
    load = os.getloadavg()[0]
    command = [str(python), str(ENTRY), "one", json.dumps(spec)]
    log = environments / "last.log"
    with open(log, "w") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, **QUIET},
            start_new_session=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        memory = Memory(process.pid)
        memory.start()
        timer = threading.Timer(LONGEST_WRITE_S if spec["task"] == "write" else LONGEST_S, process.kill)
        timer.start()
        line = process.stdout.readline()
        memory.is_over.set()
        memory.join()
        timer.cancel()
        end_group(process)
    if not line:
        return {"failed": reason(log.read_text(), process.returncode)}
    sizes = {"rss_mb": memory.peak_rss_mb, "anon_mb": memory.peak_anon_mb, "load": load}
    return {**json.loads(line), **sizes}


def end_group(process):
    """Some seconds to tidy up (shared memory); then what is left of it ends, or it would run into the next row."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=5)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def reason(log, code):
    """The line that says most: the last raised error, else the end of the log."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt|Exit|Missing\w*)\b", line)]
    return ((raised or lines or [f"ended with {code}, no message"])[-1])[:200]


def run_rounds(rows, num_rounds, seed, measure):
    """`measure(row)` for every row of every round; returns results by row."""
    draw = random.Random(seed)
    results = {row: [] for row in rows}
    for number in range(num_rounds):
        for row in draw.sample(rows, len(rows)):
            start = time.perf_counter()
            result = measure(row)
            results[row].append(result)
            took = time.perf_counter() - start
            line = f"round {number + 1} {row[0]:8s} {row[1]:45s} {row[2] or '':>8} {brief(result)}  ({took:.0f} s)"
            print(line, file=sys.stderr, flush=True)
    return results


def brief(result):
    if "failed" in result:
        return f"FAILED {result['failed']}"
    if "wall_s" in result:
        share = result["cpu_s"] / result["wall_s"]
        return f"{result['samples'] / result['wall_s']:,.0f}/s, cpu/wall {share:.2f}, load {result['load']:.1f}"
    if "mean_levels" in result:
        return f"{result['mean_levels']:.2f} grey levels"
    return f"first batch {result['first_batch_s']:.3f} s"
