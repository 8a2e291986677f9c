"""A training run as the command line asks for it: options to spec, job, report, exit code.

Imports no parser: under a scheduler this is started once for every rank, and each must be there at once.
"""

from __future__ import annotations

import os
import sys

from topout.launch import start_code
from topout.launch.job import JobResult, run_job
from topout.launch.signals import ignore_late_warnings
from topout.launch.terminal import Terminal
from topout.schema.errors import TopoutError
from topout.schema.ignoring import ignoring
from topout.schema.spec import (
    RunSpec,
    find_config,
    parse_batch,
    parse_bind,
    parse_per_node,
    parse_share,
    parse_steps_range,
    resolve_spec,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def train(options: Mapping[str, Any]) -> int:
    """Options by the names of `run`'s parameters; those that were not given are missing or None."""
    spec = spec_from(options)
    is_json, is_quiet = bool(options.get("json_output")), bool(options.get("quiet"))
    if spec.packs:
        spec = _with_packs(spec)
    # with --ddp texts hash alike on all hosts (`rank_env`), which a Python learns when it begins
    result = run_job(spec, Terminal(out_fd=2 if is_json else 1, is_quiet=is_quiet), forks=not spec.ddp)
    ignore_late_warnings()
    wants_report = options.get("report") is not False and spec.record
    code = conclude(result, wants_report=wants_report, is_json=is_json, is_quiet=is_quiet)
    if result.status != "followed":
        start_code.keep()
    return code


def spec_from(options: Mapping[str, Any]) -> RunSpec:
    given = {name: value for name, value in options.items() if value is not None}
    script, *args = given.get("script_and_args") or (None,)
    check_script(script)
    is_module = bool(given.get("module"))
    flags = {name: given.get(name) for name in ("num_ranks", "nodes", "interface", "restarts", "min_nodes", "record")}
    flags |= {
        "script": script,
        "args": tuple(args) or None,
        "is_module": is_module or None,
        "per_node": parse_per_node(given["per_node"]) if "per_node" in given else None,
        **_binding(given.get("bind"), bool(given.get("no_bind"))),
        "start_timeout_s": given.get("start_timeout"),
        "steps": given.get("steps"),
        "data_share": parse_share(given["data_share"]) if "data_share" in given else None,
        "batch": parse_batch(given["batch"]) if "batch" in given else None,
        "profile": parse_steps_range(given["profile"]) if "profile" in given else None,
        "filter": tuple(given.get("filter", ())) or None,
        "packs": tuple(given.get("packs", ())) or None,
        "ddp": given.get("ddp") or None,
        "onednn_backward": False if given.get("no_onednn_backward") else None,
        "keep_memory": given.get("keep_memory") or None,
        "runs": given.get("runs"),
    }
    spec = resolve_spec(flags, find_config(None if is_module else script))
    _check_recorded(spec)
    return spec


def _check_recorded(spec: RunSpec) -> None:
    """Of the words typed: a file may be meant for runs that are recorded, too."""
    origin = spec.origins["record"]
    for option in ("profile", "filter"):
        if not spec.record and spec.origins[option] == "command line":
            raise TopoutError(
                f"--{option} is of no use where nothing is recorded.",
                why="--no-record says so" if origin == "command line" else f"record = false says so ({origin})",
                do=f"leave out --{option}" + (", or --no-record" if origin == "command line" else ", or pass --record"),
            )


def check_script(script: str | None) -> None:
    """An empty name would mean this folder."""
    if script is not None and not script.strip():
        raise TopoutError(
            "The name of the script is empty.",
            why="an empty word stands where SCRIPT does; a variable of the shell may be unset",
            do="name it, such as train.py",
        )


def _with_packs(spec: RunSpec) -> RunSpec:
    """Opened once before anything starts, so that a wrong path is an error here and not in every rank."""
    from topout.feed.serve.orders import check_packs
    from topout.schema.light_dataclass import replace

    packs, notes = check_packs(spec.packs)
    for note in notes:
        _talk(f"topout: {note}")
    return replace(spec, packs=tuple(packs))


def _binding(bind: str | None, no_bind: bool) -> dict[str, Any]:
    if bind is None:
        return {"bind": "none" if no_bind else None}
    policy, wants_report = parse_bind(bind)
    if no_bind and policy != "none" and bind != "report":
        raise TopoutError(
            f"--bind {bind} and --no-bind exclude each other.",
            why="--no-bind is the same as --bind none.",
            do="leave one of them out",
        )
    return {"bind": "none" if no_bind else policy, "bind_report": wants_report}


def conclude(result: JobResult, *, wants_report: bool, is_json: bool, is_quiet: bool) -> int:
    """Verdict first, the first failure's traceback last; the job's exit code whatever happens to the report."""
    if result.status == "followed":
        return result.exit_code
    finished = None
    if wants_report and result.folder is not None and not result.is_refused:
        # after the job: its start need not wait for what explains its end
        from topout.cli.finish import finish, leave_to_later
        from topout.launch.stopping import STOPPED_EXIT_CODE

        # the scheduler's limit is near, and only a code that comes before it gets the job in line again
        is_to_go_on = result.status == "finished" and result.exit_code == STOPPED_EXIT_CODE
        finished = leave_to_later(result.folder) if is_to_go_on else finish(result.folder)
    from topout.cli.streams import bear_any_character

    # now that no script inherits it
    bear_any_character()
    if is_json:
        with ignoring(BrokenPipeError):
            print((finished.json_text if finished else None) or _bare(result), flush=True)
    elif finished is not None and not is_quiet:
        _talk(f"\n{finished.text}")
    elif result.folder is not None and not is_quiet and not result.is_refused:
        from shlex import quote

        from topout.schema.near import near

        place = near(result.folder.text)
        _talk(f"\nRun     {place}\nNext    topout analyze {quote(place)}")
    if result.last_words is not None:
        _talk(f"\n{result.last_words}")
    return result.exit_code


def _bare(result: JobResult) -> str:
    """What --json gives when there is nothing to analyse."""
    import json

    content = {
        "run": os.path.basename(result.folder.text) if result.folder else None,  # noqa: PTH119
        "status": result.status,
        "exit_code": result.exit_code,
        "notes": list(result.notes),
    }
    return json.dumps(content)


def _talk(text: str) -> None:
    if not text.strip():
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        # a log on a full disk must not make a job fail that went well, nor what is left in the buffer at the end
        from topout.cli.streams import silence

        silence(2)
