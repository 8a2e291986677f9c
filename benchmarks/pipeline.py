"""Pipeline bubbles: what topout measures in unmodified scripts, beside the formula of each schedule.

    python benchmarks/pipeline.py --out benchmarks/results        # 2, 4 and 8 stages, some 10 minutes
    python benchmarks/pipeline.py --quick                         # one row of each kind

Two ranks compute, a core each. Four and eight ranks sleep in place of computing (20 ms forward, 40 ms backward), which
any machine can hold. Every row is a run of its own (`topout run -n P benchmarks/pipeline_stages.py`), in random order
in every round. The share is the bubble's part of forward, backward and bubble, over all ranks and steady steps, and
its interval a bootstrap over those steps. Zero-bubble schedules are shown without a bound: their formula is an ideal.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from datetime import date
from pathlib import Path

import numpy as np

from topout.analyze.segments import PHASE
from topout.analyze.series import load_series
from topout.schema.pipeline import bubble_share
from topout.schema.run_folder import RunFolder

JOB = Path(__file__).with_name("pipeline_stages.py")
BOUND_POINTS = 5.0
SLEEP_MS = 20.0
NUM_DRAWS = 2000

Case = tuple[str, int, int, int, float]
"""schedule, ranks, stages a rank, micro-batches, milliseconds of sleep (0: computes)"""


def cases(is_quick):
    """GPipe takes any number of micro-batches, the others at least one a rank."""
    found = [(name, 2, 1, m, 0.0) for name in ("GPipe", "1F1B") for m in (2, 4, 8, 16)]
    for ranks, counts in ((4, (2, 4, 8, 16)), (8, (2, 8, 16))):
        found += [("GPipe", ranks, 1, m, SLEEP_MS) for m in counts]
        found += [("1F1B", ranks, 1, m, SLEEP_MS) for m in counts if m >= ranks]
        found += [("Interleaved1F1B", ranks, 2, m, SLEEP_MS) for m in counts if m >= ranks]
    found += [("InterleavedZeroBubble", 4, 2, 8, SLEEP_MS), ("ZBVZeroBubble", 4, 2, 8, SLEEP_MS)]
    if is_quick:
        return [case for case in found if case[1:4] in ((2, 1, 4), (4, 1, 8), (4, 2, 8))]
    return found


def record(case, steps, folder):
    """Shares of the steady steps [steps], and the median step in ms."""
    name, ranks, chunks, microbatches, sleep_ms = case
    words = ["run", "-n", ranks, "--runs", folder, JOB, name, microbatches, chunks, steps, sleep_ms]
    # ranks that sleep need no core each
    flags = [] if not sleep_ms else ["--no-bind"]
    words[1:1] = flags
    done = subprocess.run(
        [sys.executable, "-m", "topout", *map(str, words)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{case} failed:\n{done.stdout}\n{done.stderr}")
    (run,) = Path(folder).iterdir()
    series = load_series(RunFolder(run))
    own = series.phase_ns[:, :, [PHASE[phase] for phase in ("bubble", "forward", "backward")]].sum(axis=0)
    return own[:, 0] / own.sum(axis=1), float(np.median(series.duration_ns)) / 1e6


def interval(shares):
    chance = np.random.default_rng(1)
    draws = np.mean(chance.choice(shares, (NUM_DRAWS, len(shares))), axis=1)
    return np.percentile(draws, [2.5, 97.5])


def table(measured):
    lines = [
        "| schedule | ranks | stages a rank | micro-batches | work | step | formula | measured | 95 % | difference |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    worst = 0.0
    for case in sorted(measured, key=lambda case: (case[4] > 0, case[1], case[0], case[3])):
        name, ranks, chunks, microbatches, sleep_ms = case
        shares = np.concatenate([own for own, _ in measured[case]])
        step_ms = np.median([ms for _, ms in measured[case]])
        formula = bubble_share(name, ranks, microbatches, chunks)
        low, high = interval(shares)
        points = 100 * (shares.mean() - formula)
        is_bounded = "Zero" not in name
        worst = max(worst, abs(points)) if is_bounded else worst
        lines.append(
            f"| {name} | {ranks} | {chunks} | {microbatches} | {'sleeps' if sleep_ms else 'computes'} | "
            f"{step_ms:.0f} ms | {formula:.1%} | **{shares.mean():.1%}** | {low:.1%} to {high:.1%} | "
            f"{points:+.1f} points{'' if is_bounded else ' (no bound)'} |"
        )
    reached = "reached" if worst <= BOUND_POINTS else "missed"
    lines += ["", f"Largest difference {worst:.1f} points; asked for are {BOUND_POINTS:.0f}: {reached}."]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--machine", default=f"{os.cpu_count()}-cores")
    parser.add_argument("--out")
    args = parser.parse_args()
    measured = defaultdict(list)
    chance = random.Random(1)
    for _ in range(args.rounds):
        order = cases(args.quick)
        chance.shuffle(order)
        for case in order:
            with tempfile.TemporaryDirectory() as folder:
                measured[case].append(record(case, args.steps, folder))
            print(case, f"{measured[case][-1][0].mean():.1%}", file=sys.stderr, flush=True)
    text = table(measured)
    print(text)
    if args.out:
        words = f"--rounds {args.rounds} --steps {args.steps}"
        about = f"`python benchmarks/pipeline.py {words}` on {args.machine}, {date.today()}."
        path = Path(args.out, f"{date.today()}-pipeline-{args.machine}.md")
        path.write_text(f"# {__doc__.splitlines()[0]}\n\n{about}\n\n{text}\n")


if __name__ == "__main__":
    main()
