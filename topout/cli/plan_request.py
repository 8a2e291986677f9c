"""The line that asks the scheduler for what a plan recommends: the job that was planned, with what its run was told.

What `topout.toml` says is read again where the job is submitted; what was typed is not, and stands in the line.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from topout.schema.hardware import find_row
from topout.study.description import Ranged
from topout.study.job import Job
from topout.study.plan import Deadline, Plan
from topout.study.system import System

LONGER = 1.2
"""A job that ends a minute too early has lost everything since its checkpoint."""
_LEAST_S = 600


class Planned(NamedTuple):
    job: Ranged[Job]
    system: Ranged[System]


def request(
    found: Plan, script: str | None = None, options: Sequence[str] = (), *, deadline: Deadline | None = None
) -> str:
    """`script` with its arguments, as a shell reads them; None: not known, empty: topout's own."""
    asked = ["topout", "submit", "--nodes", str(found.recommended.nodes), "--time", _time(found, deadline), *options]
    return f"{shlex.join(asked)} {'train.py' if script is None else script}".rstrip()


def _time(found: Plan, deadline: Deadline | None) -> str:
    """Not beyond the deadline of a plan that keeps it: a partition may end there."""
    seconds = max(_LEAST_S, 60 * round(found.recommended.high_hours * 60 * LONGER))
    if deadline is not None and found.within is not None:
        seconds = min(seconds, max(1, round(deadline.hours * 3600)))
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def script_of(run: Mapping[str, Any]) -> str | None:
    """With its arguments, as words of a shell; empty: topout's own, which needs no name; None: not known."""
    spec = _table(run, "spec")
    if _table(run, "origins").get("script") == "embedded default":
        return ""
    if not isinstance(spec.get("script"), str):
        return None
    words = [spec["script"], *map(str, spec.get("args") or ())]
    # options of topout end where a script is named
    first = ["-m"] if spec.get("is_module") else ["--"] if words[0].startswith("-") else []
    return shlex.join([*first, *words])


def options_of(
    run: Mapping[str, Any], before: Planned, after: Planned, loader_batch: int | None, *, is_mesh: bool
) -> list[str]:
    """Of `topout run`, without those for how it was recorded; `before` and `after` what-ifs.

    `loader_batch`: what a loader of the run handed out; `is_mesh`: a mesh was planned with, which says its own samples.
    """
    spec = _table(run, "spec")
    typed = {name: spec.get(name) for name, origin in _table(run, "origins").items() if origin == "command line"}
    batch = _changed_batch(before.job.value, after.job.value, loader_batch) or typed.get("batch")
    system = after.system.value
    return [
        *(["--per-node", str(system.ranks_per_node)] if _needs_ranks(spec, before.system.value, system) else []),
        *(["--batch", str(batch)] if batch is not None and not is_mesh else []),
        *(word for pack in typed.get("packs") or () for word in ("--packs", str(pack))),
        *(["--no-onednn-backward"] if typed.get("onednn_backward") is False else []),
        *(["--keep-memory"] if typed.get("keep_memory") else []),
        # without it the script that was run would be refused on more than one rank
        *(["--ddp"] if spec.get("ddp") else []),
    ]


def left_to_script(
    run: Mapping[str, Any], before: Ranged[Job], after: Ranged[Job], options: Sequence[str]
) -> list[str]:
    """What was planned with and `options` cannot say."""
    is_same = after.value.input.samples == before.value.input.samples
    if not run or is_same or "--batch" in options:
        return []
    return ["The batch of the what-if is the script's to set, by an option of its own."]


def _needs_ranks(spec: Mapping[str, Any], before: System, after: System) -> bool:
    """Whether `topout run` on such nodes might by itself start other ranks than were planned."""
    # a number of all ranks, which topout.toml may say too, is that of the nodes it was recorded on
    is_asked = spec.get("num_ranks") is not None or spec.get("per_node") is not None
    is_changed = after.ranks_per_node != before.ranks_per_node
    # one a GPU it starts, as was planned; of processors one a NUMA domain, of which a plan does not know
    return is_asked or is_changed or _is_of_processors(after.device)


def _changed_batch(before: Job, after: Job, loader_batch: int | None) -> int | None:
    """Of one rank's loader, where a what-if has changed the samples of a step; else the script has its own option."""
    if loader_batch is None or after.input.samples == before.input.samples:
        return None
    # a step may have several batches, and peers of a mesh share one: as many times the run's as there are samples
    return max(1, round(loader_batch * after.input.samples / before.input.samples))


def _is_of_processors(device: str) -> bool:
    row = find_row(device)
    return device == "CPU" or (row is not None and row.kind == "cpu")


def _table(run: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = run.get(name)
    return found if isinstance(found, dict) else {}
