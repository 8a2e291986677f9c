"""`topout compare`: is run B slower than run A, by how much, and where?"""

import shlex
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from topout.cli.streams import even_unread
from topout.report.json_report import encode
from topout.report.text import duration_text
from topout.schema.errors import ExitCode
from topout.schema.run_folder import open_run
from topout.schema.spec import parse_share
from topout.verify.compare import RESOLUTION_NS, Comparison, Estimate
from topout.verify.runs import compare_runs


def compare(
    a: Path,
    b: Path,
    /,
    *,
    json: Annotated[bool, Parameter(negative="")] = False,
    fail_on: str | None = None,
) -> int:
    """Compare the step times of two runs, with 95 % intervals over steps.

    Where a step takes other numbers of samples in B than in A, over all ranks, the time a sample decides.

    Parameters
    ----------
    a
        Run folder to compare with.
    b
        Run folder to judge.
    json
        Print the comparison as JSON.
    fail_on
        Exit with 1 when B is slower than A by more than this share, such as 3%, with confidence.
    """
    threshold_share = None if fail_on is None else parse_share(fail_on)
    comparison = compare_runs(open_run(a)[0], open_run(b)[0])
    with even_unread():
        sys.stdout.write(encode(comparison) if json else render(comparison))
    has_failed = threshold_share is not None and comparison.is_slower_by(threshold_share)
    if has_failed:
        print(f"B is slower by more than {fail_on}.", file=sys.stderr)
    print(f"Next    topout analyze {shlex.quote(str(b if comparison.judged.value >= 1 else a))}", file=sys.stderr)
    return ExitCode.FINDINGS if has_failed else ExitCode.FINE


def render(comparison: Comparison) -> str:
    """A few lines: the answer, then where the difference comes from."""
    ratios = {"step time B / A": comparison.ratio}
    if comparison.sample_ratio is not None:
        ratios = {"time a sample B / A": comparison.sample_ratio} | ratios
    widest = max(map(len, ratios))
    lines = [
        _answer(comparison),
        *(
            f"  {name:<{widest}}   {ratio.value:.3f}   95 % interval {ratio.low:.3f} to {ratio.high:.3f}"
            for name, ratio in ratios.items()
        ),
        f"  A  {_pace(comparison.a_step_ns, comparison.a_num_steps, comparison.a_samples_per_step)}   {comparison.a}",
        f"  B  {_pace(comparison.b_step_ns, comparison.b_num_steps, comparison.b_samples_per_step)}   {comparison.b}",
        "",
        "Per step, mean over ranks          A          B      B - A   95 % interval",
    ]
    for phase in comparison.phases:
        if phase.a_ns or phase.b_ns:
            mark = "*" if phase.is_found else " "
            times = "".join(f"{duration_text(time):>11}" for time in (phase.a_ns, phase.b_ns))
            difference = f"{_signed(phase.difference_ns.value):>11}   {_between(phase.difference_ns)}"
            lines.append(f"{mark} {phase.phase:<22}{times}{difference}")
    lines += ["* differs: the interval does not cover 0", *(f"Note: {note}" for note in comparison.notes)]
    lines.append(f"Block bootstrap over steps, {comparison.num_resamples} resamples, seed {comparison.seed}.")
    return "\n".join(lines) + "\n"


def _answer(comparison: Comparison) -> str:
    if comparison.result == "no difference found":
        return "No difference found: the interval covers 1."
    change_percent = 100 * (comparison.judged.value - 1)
    direction = "more" if change_percent > 0 else "less"
    what = "step" if comparison.sample_ratio is None else "sample"
    return f"B is {comparison.result}: a {what} takes {abs(change_percent):.1f} % {direction} time."


def _pace(step_ns: float, num_steps: int, samples_per_step: float | None) -> str:
    pace = f"{duration_text(step_ns):>8} a step over {num_steps} steps"
    if samples_per_step is None:
        return pace
    samples_per_s = samples_per_step / (step_ns / 1e9)
    return f"{pace}, {f'{samples_per_s:,.0f}' if samples_per_s >= 100 else f'{samples_per_s:.3g}'} samples/s"


def _signed(difference_ns: float) -> str:
    sign = "" if abs(difference_ns) < RESOLUTION_NS else "+" if difference_ns > 0 else "-"
    return sign + duration_text(abs(difference_ns))


def _between(estimate: Estimate) -> str:
    return f"{_signed(estimate.low)} to {_signed(estimate.high)}"
