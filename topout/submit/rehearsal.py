"""Two steps of the job on this machine before it is submitted: a typing error found now need not wait in a queue.

In the job's own environment (modules, venv or container), but on the login node: not for scripts that need a GPU there
is none of here, and no measurement.
"""

import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from topout.schema.errors import ExitCode, TopoutError
from topout.submit.job_script import environment, in_container
from topout.submit.site import Site

NUM_STEPS = 2
LIMIT_S = 600.0
"""A script without optimizer steps would train to the end here."""
_NUM_LAST_LINES = 8


def rehearse(
    site: Site,
    folder: Path,
    topout_run: Sequence[str],
    script_words: Sequence[str],
    *,
    num_ranks: int,
    limit_s: float = LIMIT_S,
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),  # noqa: T201
) -> None:
    """Raises when the two steps fail; what the script prints goes to stderr while it runs."""
    with tempfile.TemporaryDirectory(prefix="topout-rehearsal-") as runs:
        options = ["--steps", str(NUM_STEPS), "-n", str(num_ranks), "--no-report", "--quiet", "--runs", runs]
        command = in_container(site, [*topout_run, *options, *script_words], has_gpus=bool(site.gpus_per_node))
        lines = ["set -euo pipefail", *environment(site, folder), f"exec {command}"]
        code, last = _run("\n".join(lines), limit_s, say)
    if code is None:
        raise TopoutError(
            "The rehearsal did not come to an end, so nothing was submitted.",
            why=f"{NUM_STEPS} optimizer steps took more than {limit_s / 60:.0f} minutes here, or the script makes none",
            do="rehearse with smaller data, or submit without --rehearse",
            exit_code=ExitCode.JOB_FAILED,
        )
    if code != 0:
        raise TopoutError(
            "The rehearsal failed, so nothing was submitted.",
            why=last[-1].strip() if last else f"it ended with exit code {code}",
            do="mend the script, or submit without --rehearse what cannot run on this machine",
            exit_code=ExitCode.JOB_FAILED,
        )


def _run(script: str, limit_s: float, say: Callable[[str], None]) -> tuple[int | None, list[str]]:
    """(exit code, last lines); None when the limit ended it."""
    process = subprocess.Popen(
        ["bash", "-l", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    # the launcher ends its ranks when it is asked to end
    timer = threading.Timer(limit_s, process.terminate)
    timer.start()
    last: list[str] = []
    try:
        for line in process.stdout:
            say(line.rstrip("\n"))
            if line.strip():
                last = [*last[-_NUM_LAST_LINES:], line]
        code = process.wait()
    except BaseException:
        process.terminate()
        raise
    finally:
        has_expired = not timer.is_alive()
        timer.cancel()
        process.stdout.close()
    return (None if has_expired else code), last
