"""`topout run`: a training script on all GPUs or cores of this machine, recorded and explained without an edit to it.

Only parsing and printing; `launch.job` runs the job, `finish` explains it.
"""

import contextlib
import json
import sys
from typing import Annotated, Any

from cyclopts import Parameter

from topout.cli.finish import finish, shown
from topout.launch.job import JobResult, Terminal, run_job
from topout.schema.spec import find_config, parse_share, parse_steps_range, resolve_spec

FLAGS = frozenset({
    "-m", "--module", "--bind", "--no-bind", "--record", "--no-record", "--report", "--no-report", "--json", "--quiet",
    "-q", "-h", "--help", "--version",
})  # fmt: skip
"""Options without a value; every other one takes the word after it."""


def delimit_script(tokens: list[str]) -> list[str]:
    """Puts `--` before SCRIPT, so that every word from there on reaches the script as it stands."""
    number = 0
    while number < len(tokens):
        token = tokens[number]
        if token == "--":
            return tokens
        if not token.startswith("-") or token == "-":
            return [*tokens[:number], "--", *tokens[number:]]
        is_whole = token in FLAGS or "=" in token or (token[1] != "-" and len(token) > 2)
        number += 1 if is_whole else 2
    return tokens


def run(
    *script_and_args: Annotated[str, Parameter(name="SCRIPT-AND-ARGS")],
    num_ranks: Annotated[int | None, Parameter(name=["-n", "--num-ranks"])] = None,
    per_node: int | None = None,
    module: Annotated[bool, Parameter(name=["-m", "--module"], negative="")] = False,
    steps: int | None = None,
    data_share: str | None = None,
    profile: str | None = None,
    filter: Annotated[tuple[str, ...], Parameter(name="--filter", consume_multiple=False, negative="")] = (),
    bind: bool | None = None,
    record: bool | None = None,
    runs: str | None = None,
    report: bool = True,
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
    quiet: Annotated[bool, Parameter(name=["-q", "--quiet"], negative="")] = False,
) -> int:
    """Run a training script on every GPU or core of this machine, record it and say what holds it back.

    Options stand before SCRIPT; everything after it belongs to the script. Without SCRIPT, a small network is
    trained on handwritten digits, to show what a run gives.

    Parameters
    ----------
    script_and_args
        The script and its own arguments.
    num_ranks
        Number of ranks. Default: one a GPU, else one a NUMA domain.
    per_node
        Ranks on each host; 1 for code that drives several GPUs itself.
    module
        SCRIPT is the name of a module, as in python -m.
    steps
        End cleanly after so many optimizer steps.
    data_share
        Loaders yield only this share of their batches, such as 2%.
    profile
        Steps to look into with torch.profiler, such as 20-29.
    filter
        Leave out spans by name; shell patterns, repeatable.
    bind
        Bind each rank to cores of its own.
    record
        Record what happens in each rank.
    runs
        Folder in which run folders are made. Default: topout-runs.
    report
        Analyse the run at its end and write report.html.
    json_output
        The analysis as JSON on stdout; the script's own output goes to stderr.
    quiet
        Say nothing but warnings and errors.
    """
    script = script_and_args[0] if script_and_args else None
    flags = {
        "script": script,
        "args": tuple(script_and_args[1:]) or None,
        "is_module": module or None,
        "num_ranks": num_ranks,
        "per_node": per_node,
        "bind": bind,
        "record": record,
        "steps": steps,
        "data_share": None if data_share is None else parse_share(data_share),
        "profile": None if profile is None else parse_steps_range(profile),
        "filter": filter or None,
        "runs": runs,
    }
    spec = resolve_spec(flags, find_config(None if module else script))
    result = run_job(spec, Terminal(out_fd=2 if json_output else 1, is_quiet=quiet))
    return conclude(result, wants_report=report and spec.record, is_json=json_output, is_quiet=quiet)


def conclude(result: JobResult, *, wants_report: bool, is_json: bool, is_quiet: bool) -> int:
    """Verdict first, the first failure's traceback last; the job's exit code whatever happens to the report."""
    finished = finish(result.folder) if wants_report and result.folder is not None else None
    if is_json:
        with contextlib.suppress(BrokenPipeError):
            print((finished.json_text if finished else None) or json.dumps(_bare(result)), flush=True)
    elif finished is not None and not is_quiet:
        _talk(f"\n{finished.text}")
    elif result.folder is not None and not is_quiet:
        _talk(f"\nRun     {shown(result.folder.path)}\nNext    topout analyze {shown(result.folder.path)}")
    if result.last_words is not None:
        _talk(f"\n{result.last_words}")
    return result.exit_code


def _bare(result: JobResult) -> dict[str, Any]:
    """What --json gives when there is nothing to analyse."""
    return {
        "run": result.folder.path.name if result.folder else None,
        "status": result.status,
        "exit_code": result.exit_code,
        "notes": list(result.notes),
    }


def _talk(text: str) -> None:
    if text.strip():
        print(text, file=sys.stderr, flush=True)
