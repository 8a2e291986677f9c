"""`topout compare`: is run B slower than run A, by how much, and where?"""

import shlex
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

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
    sys.stdout.write(encode(comparison) if json else render(comparison))
    has_failed = threshold_share is not None and comparison.is_slower_by(threshold_share)
    if has_failed:
        print(f"B is slower by more than {fail_on}.", file=sys.stderr)
    print(f"Next    topout analyze {shlex.quote(str(b if comparison.ratio.value >= 1 else a))}", file=sys.stderr)
    return ExitCode.FINDINGS if has_failed else ExitCode.FINE


def render(comparison: Comparison) -> str:
    """A few lines: the answer, then where the difference comes from."""
    ratio = comparison.ratio
    lines = [
        _answer(comparison),
        f"  step time B / A   {ratio.value:.3f}   95 % interval {ratio.low:.3f} to {ratio.high:.3f}",
        f"  A  {duration_text(comparison.a_step_ns):>8} a step over {comparison.a_num_steps} steps   {comparison.a}",
        f"  B  {duration_text(comparison.b_step_ns):>8} a step over {comparison.b_num_steps} steps   {comparison.b}",
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
    change_percent = 100 * (comparison.ratio.value - 1)
    direction = "more" if change_percent > 0 else "less"
    return f"B is {comparison.result}: a step takes {abs(change_percent):.1f} % {direction} time."


def _signed(difference_ns: float) -> str:
    sign = "" if abs(difference_ns) < RESOLUTION_NS else "+" if difference_ns > 0 else "-"
    return sign + duration_text(abs(difference_ns))


def _between(estimate: Estimate) -> str:
    return f"{_signed(estimate.low)} to {_signed(estimate.high)}"
