"""The text of a job script: directives, environment, the run, and what happens when it was stopped on request.

Written to be read and edited by whoever owns the job. Not what a scheduler wants to know; its plug-in writes that.
"""

from collections.abc import Sequence
from pathlib import Path

from topout import __version__
from topout.launch.stopping import STOPPED_EXIT_CODE
from topout.submit.queues import Queue
from topout.submit.quoting import joined, quoted
from topout.submit.site import Site

_FIND_CONTAINER = (
    "container=$(command -v apptainer || command -v singularity) || "
    '{ echo "neither apptainer nor singularity is on the PATH" >&2; exit 3; }'
)
_NAME_FIRST_HOST = 'export TOPOUT_HEAD="$(hostname)"  # the first host, where rank 0 runs'
"""Always anew: a job that submits itself again may pass its environment on."""
_EARLY_S = 30
"""A scheduler's own warning may come so much before the script's clock, which starts later."""


def job_script(
    directives: Sequence[str],
    site: Site,
    command: str,
    *,
    folder: Path,
    queue: Queue,
    job: Path | None = None,
    is_requeued: bool = True,
    warn_after_s: int | None = None,
    then: str | None = None,
) -> str:
    """`command` is a line of shell that runs the job in `folder`; `job` is where topout keeps what belongs to it.

    `warn_after_s`: when the script warns the run, for schedulers that do not. `then`: a line of shell after a success.
    """
    if warn_after_s is not None:
        # sends SIGUSR1 at that time, passes other signals on, and ends with the command and its exit code
        remaining = f"$(({warn_after_s} > SECONDS ? {warn_after_s} - SECONDS : 1))"
        command = f"timeout --foreground --preserve-status -s USR1 {remaining} {command}"
    parts = [
        [
            "#!/bin/bash -l",
            *directives,
            f"# written by topout submit {__version__}; edit and submit it by hand as you like",
        ],
        [
            "set -euo pipefail",
            *([f"export TOPOUT_JOB={quoted(str(job))}"] if job is not None else []),
            *([_NAME_FIRST_HOST] if site.container and queue.hides_hosts else []),
        ],
        environment(site, folder),
        _supervised(command),
        _ending(queue if is_requeued else Queue(), warn_after_s, then),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def environment(site: Site, folder: Path) -> list[str]:
    """Folder, modules, Python environment, container, and the site's own lines."""
    lines = []
    if site.modules:
        lines.append(f"module load {joined(site.modules)}")
    if site.venv:
        lines.append(f"source {quoted(str(Path(site.venv).expanduser().absolute() / 'bin' / 'activate'))}")
    if site.conda:
        lines += ['eval "$(conda shell.bash hook)"', f"conda activate {quoted(site.conda)}"]
    if lines:
        lines = ["set +u  # modules and environments read variables that need not be set", *lines, "set -u"]
    return [*lines, f"cd {quoted(str(folder))}", *site.before, *([_FIND_CONTAINER] if site.container else [])]


def in_container(site: Site, words: Sequence[str], *, has_gpus: bool) -> str:
    """The words as a line of shell; inside the image when there is one."""
    if not site.container:
        return joined(words)
    options = site.container_options if site.container_options is not None else ("--nv",) if has_gpus else ()
    image = site.container
    if "://" not in image:
        image = str(Path(image).expanduser().absolute())
    return f'"$container" exec {joined([*options, image, *words])}'


def _supervised(command: str) -> list[str]:
    """In the background, since bash looks at signals only between commands, or while it waits.

    A termination is no warning: whoever deletes a job does not want it again.
    """
    return [
        "# the warning before the end reaches the script as topout.should_stop()",
        "run=",
        """trap '[ -z "$run" ] || kill -USR1 "$run" 2> /dev/null || true' USR1 USR2""",
        """trap '[ -z "$run" ] || kill -TERM "$run" 2> /dev/null || true' TERM""",
        f"{command} &",
        "run=$!",
        'while kill -0 "$run" 2> /dev/null; do wait "$run" || true; done',
        "code=0",
        'wait "$run" || code=$?',
    ]


def _ending(queue: Queue, warn_after_s: int | None, then: str | None) -> list[str]:
    lines = []
    again, condition = queue.requeue, f'[ "$code" -eq {STOPPED_EXIT_CODE} ]'
    if queue.resubmit:
        again = f'{joined(queue.resubmit)} "$TOPOUT_JOB/job.sh" >> "$TOPOUT_JOB/job_ids"'
        if queue.requeue is not None:
            # compute nodes need not be allowed to submit
            again += f" || {queue.requeue}"
        if warn_after_s is not None:
            # warned before its time, it was stopped by somebody who may not want another one
            condition += f' && [ "$SECONDS" -ge {warn_after_s - _EARLY_S} ]'
    if again is not None:
        lines += [
            f"if {condition}; then",
            "    # it saved and stopped when it was asked to: in line again, to go on from there",
            f"    {again}",
            "fi",
        ]
    if then is not None:
        lines.append(f'[ "$code" -ne 0 ] || {then}')
    return [*lines, 'exit "$code"']
