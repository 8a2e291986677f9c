"""Live hold-out: calibrate on two ranks, predict three and four, then run them.

    python benchmarks/scaling.py --out benchmarks/results        # some five minutes

Computing is emulated by sleep, since cores are few; communication is real (`scaling_job.py`). The model sees the run of
two ranks and the doctor's links, nothing of three and four; simpler laws see one and two ranks. An error counts as met
within 10 % or twice the variation between repeats.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from topout.schema.run_folder import open_run
from topout.study.baselines import laws
from topout.study.calibrate import calibrate
from topout.study.curve import curve
from topout.study.description import describe
from topout.study.job import Job
from topout.study.scaling_runs import observe
from topout.study.system import System

JOB = Path(__file__).with_name("scaling_job.py")
KINDS = {
    "even ranks, 1 MB": ["--spread", "0.01", "--megabytes", "1"],
    "spread 5 %, 1 MB": ["--spread", "0.05", "--megabytes", "1"],
    "spread 15 %, 1 MB": ["--spread", "0.15", "--megabytes", "1"],
    "spread 5 %, 16 MB": ["--spread", "0.05", "--megabytes", "16"],
    "spread 5 %, 64 MB": ["--spread", "0.05", "--megabytes", "64"],
}


def run(folder, ranks, words):
    before = set(folder.glob("*/run.json"))
    command = [sys.executable, "-m", "topout", "run", "-q", "--bind", "none", "-n", str(ranks), "--runs", str(folder)]
    done = subprocess.run([*command, str(JOB), *words], capture_output=True, text=True, check=False)
    (made,) = set(folder.glob("*/run.json")) - before
    assert done.returncode in (0, 1), done.stderr
    return made.parent


def doctors_links(folder):
    command = [sys.executable, "-m", "topout", "doctor", "--json", "-q", "--runs", str(folder)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)


def held_out(kind, words, folder, doctor, args):
    """Rows of the table: measured, predicted, and what simpler laws say."""
    seen = {ranks: [observe(run(folder, ranks, words)) for _ in range(args.repeats)] for ranks in (1, 2)}
    found = calibrate(open_run(folder / seen[2][0].name)[0], doctor)
    # ranks of one host talk as nodes would over the same link
    link = found.system["inside"]
    flat = found.system | {"ranks_per_node": 1, "inside": link, "between": link}
    job, system = describe(Job, found.job, "job"), describe(System, flat, "system")
    rates = {ranks: statistics.mean(each.samples_per_s for each in runs) for ranks, runs in seen.items()}
    simple = laws(rates)
    rows = []
    for point in curve(job, system, [3, 4]):
        real = [observe(run(folder, point.nodes, words)).samples_per_s for _ in range(args.repeats)]
        mean = statistics.mean(real)
        variation = statistics.stdev(real) / mean if len(real) > 1 else 0.0
        error = point.samples_per_s / mean - 1
        rows.append({
            "kind": kind, "ranks": point.nodes, "measured": mean, "variation": variation,
            "predicted": point.samples_per_s, "low": point.low, "high": point.high, "error": error,
            "is_met": abs(error) <= max(0.1, 2 * variation), "is_inside": point.low <= mean <= point.high,
            "laws": {name: law(point.nodes) / mean - 1 for name, law in simple.items()},
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def table(rows, args):
    lines = [
        "# Two ranks calibrated, three and four predicted and run",
        f"{date.today()}; {args.machine}; {args.repeats} runs at each point; made by `benchmarks/scaling.py`.",
        "Computing is sleep, communication real (Gloo on loopback, two cores for all ranks).",
        "",
        "| job | ranks | measured | between runs | predicted (80 %) | error | constant efficiency | Amdahl |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['kind']} | {row['ranks']} | {row['measured']:.0f} | {row['variation']:.1%} | {row['predicted']:.0f} "
        f"({row['low']:.0f} to {row['high']:.0f}) | {row['error']:+.1%} | {row['laws']['constant efficiency']:+.1%} "
        f"| {row['laws']['Amdahl']:+.1%} |"
        for row in rows
    ]
    met, inside = sum(row["is_met"] for row in rows), sum(row["is_inside"] for row in rows)
    worst = {name: max(abs(row["laws"][name]) for row in rows) for name in rows[0]["laws"]}
    lines += [
        "",
        f"Within 10 % or twice the variation between runs: {met} of {len(rows)}; largest error "
        f"{max(abs(row['error']) for row in rows):.1%}; "
        + ", ".join(f"{name} {error:.1%}" for name, error in worst.items())
        + f". Measured inside the 80 % interval: {inside} of {len(rows)}.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--machine", default=f"{os.cpu_count()}-cores")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found_rows = []
    with tempfile.TemporaryDirectory() as work:
        diagnosis = doctors_links(Path(work))
        for name in arguments.kinds:
            found_rows += held_out(name, KINDS[name], Path(work) / name.replace(" ", "-"), diagnosis, arguments)
    text = table(found_rows, arguments)
    print(text)
    if arguments.out:
        (arguments.out / f"{date.today()}-scaling-{arguments.machine}.md").write_text(text)
