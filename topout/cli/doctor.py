"""`topout doctor`: is this machine, or this allocation, fit for training? One line a check, exit code 3 when it is not.

Only parsing and printing; `preflight.doctor` runs the probes and judges what they found.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from topout.cli.kept_runs import runs_root
from topout.launch.terminal import Terminal
from topout.preflight.diagnosis import to_json
from topout.preflight.doctor import examine, orders_for
from topout.preflight.table import render


def doctor(
    *,
    nodes: int | None = None,
    data: str | None = None,
    kernels: Annotated[bool, Parameter(negative="")] = False,
    python: Annotated[tuple[str, ...], Parameter(consume_multiple=False, negative="")] = (),
    interface: str | None = None,
    start_timeout: float = 25.0,
    runs: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
    quiet: Annotated[bool, Parameter(name=["-q", "--quiet"], negative="")] = False,
) -> int:
    """Check versions, limits, kernels, links and file systems of this machine, or of every host of an allocation.

    Takes less than a minute, with --kernels some. Measures with files of its own, which it removes, and with
    connections among the job's hosts alone. Exit code 3 when something makes training fail.

    Parameters
    ----------
    nodes
        How many hosts of the allocation to look at. Default: all.
    data
        Path of the training data, whose file system is tried out too.
    kernels
        Sweep sizes of matrix products, convolutions and recurrent layers, and compare AVX-512 with AVX2; minutes.
    python
        Another interpreter whose imports are timed, such as 'apptainer exec image.sif python'; repeatable.
    interface
        Network interface over which hosts reach each other.
    start_timeout
        Seconds without a further host arriving after which the start counts as failed. Default: 25.
    runs
        Folder in which findings are kept, under doctor/. Default: where runs are kept, topout-runs.
    json
        The whole diagnosis as JSON on stdout.
    quiet
        No progress while it runs.
    """
    talks = not quiet and not json
    orders = orders_for(data=data, kernels=kernels, pythons=python, talks=talks)
    # the table is data and goes to stdout; whatever a probe's libraries print does not
    terminal = Terminal(out_fd=2, is_quiet=True)
    examined = examine(
        orders, terminal, nodes=nodes, interface=interface, runs=runs or str(runs_root()), start_timeout_s=start_timeout
    )  # fmt: skip
    if examined.diagnosis is not None:
        if json:
            sys.stdout.write(to_json(examined.diagnosis))
        else:
            width = min(shutil.get_terminal_size((110, 24)).columns, 130)
            sys.stdout.write(render(examined.diagnosis, width=width, color=_wants_color()))
        _talk(examined.document)
    if examined.last_words:
        print(examined.last_words, file=sys.stderr)
    return examined.exit_code


def _talk(document: Path | None) -> None:
    if document is not None:
        near = os.path.relpath(document)
        print(f"\nFound   {document if near.startswith('..') else near}", file=sys.stderr)
    print("Next    topout run train.py", file=sys.stderr)


def _wants_color() -> bool:
    """https://no-color.org: a terminal gets colour unless it asked for none."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
