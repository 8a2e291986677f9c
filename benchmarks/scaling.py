"""Live hold-out: calibrate on two ranks or nodes, predict more, then run them.

    python benchmarks/scaling.py --out benchmarks/results        # some twenty minutes; nodes need root and Open MPI

Computing is emulated by sleep, since cores are few; communication is real (`scaling_job.py`): ranks of this host over
loopback, and nodes of the laboratory (`tests/lab`) over links of 1 Gbit/s. The model sees one recorded run of two and
the doctor's links, nothing of the others; simpler laws see two points on the host (1, 2) and three between nodes
(1, 2, 3). A prediction counts as met within 10 % or twice the variation between repeats.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.lab.nodes import Nodes
from topout.schema.run_folder import open_run
from topout.study.baselines import laws
from topout.study.calibrate import calibrate
from topout.study.curve import curve
from topout.study.description import describe
from topout.study.job import Job
from topout.study.scaling_runs import observe
from topout.study.system import System

JOB = Path(__file__).with_name("scaling_job.py")
TOPOUT = [sys.executable, "-m", "topout"]
LAWS = ("constant efficiency", "Amdahl", "PMNF")


class Host:
    """Ranks of this machine, over loopback."""

    name = "one host"
    seen, asked = (1, 2), (3, 4)
    kinds: ClassVar = {
        "spread 1 %, 1 MB": ["--spread", "0.01", "--megabytes", "1"],
        "spread 5 %, 1 MB": ["--spread", "0.05", "--megabytes", "1"],
        "spread 15 %, 1 MB": ["--spread", "0.15", "--megabytes", "1"],
        "spread 5 %, 16 MB": ["--spread", "0.05", "--megabytes", "16"],
        "spread 5 %, 64 MB": ["--spread", "0.05", "--megabytes", "64"],
    }

    def topout(self, num, *words):
        many = ["-n", str(num)] if num else []
        command = [*TOPOUT, words[0], *many, *map(str, words[1:])]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def doctor(self, folder):
        return self.topout(0, "doctor", "--json", "-q", "--runs", folder)

    def describe(self, found, num):
        return found | {"ranks_per_node": num}


class Laboratory:
    """Nodes with a link of their own, a rank each."""

    name = "nodes, 1 Gbit/s"
    seen, asked = (1, 2, 3), (4, 6, 8)
    kinds: ClassVar = {
        "spread 1 %, 1 MB": ["--spread", "0.01", "--megabytes", "1"],
        "spread 5 %, 4 MB": ["--spread", "0.05", "--megabytes", "4"],
        "spread 15 %, 4 MB": ["--spread", "0.15", "--megabytes", "4"],
        "spread 5 %, 16 MB": ["--spread", "0.05", "--megabytes", "16"],
    }

    def __init__(self, nodes):
        self.nodes = nodes

    def topout(self, num, *words):
        hosts = ",".join(node.name for node in list(self.nodes)[:num])
        command = ["mpirun.openmpi", "-np", str(num), "--host", hosts, *TOPOUT, *map(str, words)]
        return self.nodes[0].run(command, timeout=300, env={"PYTHONPATH": str(JOB.parent.parent)})

    def doctor(self, folder):
        return self.topout(2, "doctor", "--json", "-q", "--runs", folder)

    def describe(self, found, num):
        """As it is: all nodes share this machine's cores, and each has a link of its own."""
        return found | {"ranks_per_node": num, "inside": found["between"], "cores": os.cpu_count()}


def run(place, folder, num, words):
    before = set(folder.glob("*/run.json"))
    done = place.topout(num, "run", "-q", "--bind", "none", "--runs", folder, JOB, *words)
    made = set(folder.glob("*/run.json")) - before
    assert len(made) == 1 and done.returncode in (0, 1), (done.stdout[-2000:], done.stderr[-2000:])
    return made.pop().parent


def held_out(place, kind, folder, doctor, args):
    """Rows of the table: measured, predicted, and what simpler laws say."""
    words = [*place.kinds[kind], "--steps", str(args.steps)]
    seen = {num: [observe(run(place, folder, num, words)) for _ in range(args.repeats)] for num in place.seen}
    found = calibrate(open_run(folder / seen[2][0].name)[0], doctor)
    job = describe(Job, found.job, "job")
    simple = laws({num: statistics.mean(each.samples_per_s for each in runs) for num, runs in seen.items()})
    rows = []
    for num in place.asked:
        [point] = curve(job, describe(System, place.describe(found.system, num), "system"), [1])
        real = [observe(run(place, folder, num, words)).samples_per_s for _ in range(args.repeats)]
        mean = statistics.mean(real)
        variation = statistics.stdev(real) / mean if len(real) > 1 else 0.0
        error = point.samples_per_s / mean - 1
        rows.append({
            "place": place.name, "kind": kind, "num": num, "measured": mean, "variation": variation,
            "predicted": point.samples_per_s, "low": point.low, "high": point.high, "error": error,
            "is_met": abs(error) <= max(0.1, 2 * variation), "is_inside": point.low <= mean <= point.high,
            "parts": point.step.parts, "laws": {name: law(num) / mean - 1 for name, law in simple.items()},
        })  # fmt: skip
        print(json.dumps(rows[-1]), flush=True)
    return rows


def table(rows, args):
    lines = [
        "# Two calibrated, more predicted and run",
        "",
        f"{date.today()}; {args.machine}; {args.repeats} runs at each point; made by `benchmarks/scaling.py`.",
        "Computing is sleep, communication real: ranks of one host over loopback, nodes over links of 1 Gbit/s.",
        "",
        f"| where | job | ranks | samples/s | between runs | predicted (80 %) | error | {' | '.join(LAWS)} |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        others = " | ".join(f"{row['laws'][name]:+.1%}" if name in row["laws"] else "–" for name in LAWS)
        lines.append(
            f"| {row['place']} | {row['kind']} | {row['num']} | {row['measured']:.0f} | {row['variation']:.1%} | "
            f"{row['predicted']:.0f} ({row['low']:.0f} to {row['high']:.0f}) | {row['error']:+.1%} | {others} |"
        )
    for place in dict.fromkeys(row["place"] for row in rows):
        lines += ["", summary(place, [row for row in rows if row["place"] == place])]
    return "\n".join(lines) + "\n"


def summary(place, rows):
    met, inside = sum(row["is_met"] for row in rows), sum(row["is_inside"] for row in rows)
    errors = {"the model": [abs(row["error"]) for row in rows]}
    errors |= {name: [abs(row["laws"][name]) for row in rows] for name in LAWS if name in rows[0]["laws"]}
    said = "; ".join(f"{name} {statistics.median(each):.1%}, {max(each):.1%} at worst" for name, each in errors.items())
    return (
        f"{place}: within 10 % or twice the variation between runs {met} of {len(rows)}; inside the 80 % interval "
        f"{inside} of {len(rows)}. Median error: {said}."
    )


@contextmanager
def places(names):
    found = [Host()] if "host" in names else []
    if "nodes" not in names:
        yield found
        return
    with Nodes(max(Laboratory.asked), rate="1gbit") as nodes:
        yield [*found, Laboratory(nodes)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--where", nargs="+", default=["host", "nodes"], choices=["host", "nodes"])
    parser.add_argument("--kinds", nargs="+", help="only these")
    parser.add_argument("--machine", default=f"{os.cpu_count()}-cores")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found_rows = []
    with tempfile.TemporaryDirectory() as work, places(arguments.where) as chosen:
        for where in chosen:
            diagnosis = json.loads(where.doctor(Path(work)).stdout)
            for name in [name for name in where.kinds if not arguments.kinds or name in arguments.kinds]:
                own = Path(work) / where.name.replace(" ", "-") / name.replace(" ", "-")
                found_rows += held_out(where, name, own, diagnosis, arguments)
    text = table(found_rows, arguments)
    print(text)
    if arguments.out:
        (arguments.out / f"{date.today()}-scaling-{arguments.machine}.md").write_text(text)
