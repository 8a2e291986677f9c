"""`topout submit`: a job script for the site's scheduler, shown or submitted.

Only parsing and printing; `topout.submit` writes and sends. What `topout run` understands may be given here too and is
handed on, so that this file need not know it.
"""

import itertools
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from topout.cli import run_options
from topout.cli.app import AS_TYPED, DEFAULTS
from topout.cli.training import spec_from
from topout.launch.bounds import check_min_nodes, check_numbers
from topout.launch.target import with_target
from topout.schema.counted import counted
from topout.schema.errors import TopoutError
from topout.schema.near import near
from topout.schema.spec import RunSpec, find_config
from topout.submit.rehearsal import rehearse as rehearse_job
from topout.submit.scheduler import choose_scheduler, load_scheduler
from topout.submit.site import Site, resolve_site, site_files
from topout.submit.site import shown as shown_settings
from topout.submit.submission import Submission, scripts_of, topout_words
from topout.submit.submission import submit as submit_job

OPTIONS = frozenset({
    "--nodes", "--time", "--scheduler", "--account", "--partition", "--qos", "--gpus", "--container", "--switches",
    "--eval-job", "--runs", "--run-option",
})  # fmt: skip
FLAGS = frozenset({"--dry-run", "--rehearse", *run_options.ASKING})
"""Options without a value."""
_OF_TASKS = frozenset({"-n", "--num-ranks", "--per-node"})
"""In a container the scheduler starts the ranks, and gets the number that these come to."""
_REHEARSED = frozenset({
    "-m", "--module", "--data-share", "--batch", "--filter", "--record", "--no-record", "--packs", "--ddp",
    "--no-onednn-backward", "--keep-memory",
})  # fmt: skip


def arrange(tokens: list[str]) -> list[str]:
    """Own options as typed, options of `topout run` each behind `--run-option`, then `--` and the script's words."""
    own, handed_on = [], []
    number = 0
    while number < len(tokens) and tokens[number].startswith("-") and tokens[number] not in ("-", "--"):
        name, equals, value = _split(tokens[number])
        is_whole = equals or name in run_options.FLAGS or name in FLAGS
        words = [name, value] if equals else tokens[number : number + (1 if is_whole else 2)]
        number += 1 if equals else len(words)
        # whoever misspelt an option is told about those of this verb
        is_own = name in OPTIONS or name in FLAGS or name not in {**run_options.OPTIONS, **run_options.FLAGS}
        if is_own:
            own += [f"{name}={value}"] if equals else words
        else:
            handed_on += [f"--run-option={word}" for word in words]
    rest = tokens[number:]
    if rest[:1] == ["--"]:
        return [*own, *handed_on, *rest]
    if "--dry-run" in rest and "--dry-run" not in own:
        raise TopoutError(
            f"--dry-run stands after {rest[0]}.",
            why="there it is the script's own, and the job would be submitted for real",
            do=f"--dry-run before {rest[0]}; if the script knows it, too: topout submit … -- {shlex.join(rest)}",
        )
    return [*own, *handed_on, "--", *rest]


def _split(token: str) -> tuple[str, bool, str]:
    """`--steps=3` and `-n3` are an option and its value."""
    if token[1] != "-" and len(token) > 2 and "=" not in token:
        return token[:2], True, token[2:]
    name, equals, value = token.partition("=")
    return name, bool(equals), value


def submit(
    *script_and_args: Annotated[str, AS_TYPED, Parameter(name="SCRIPT-AND-ARGS")],
    nodes: int | None = None,
    time: str | None = None,
    gpus: int | None = None,
    account: str | None = None,
    partition: str | None = None,
    qos: str | None = None,
    container: str | None = None,
    switches: int | None = None,
    scheduler: str | None = None,
    runs: str | None = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    rehearse: Annotated[bool, Parameter(negative="")] = False,
    eval_job: str | None = None,
    run_option: Annotated[
        tuple[str, ...], AS_TYPED, Parameter(name="--run-option", consume_multiple=False, negative="", show=False)
    ] = (),
) -> int:
    """Write the job script for this site's scheduler and submit it.

    Options of topout run may stand among these; everything after SCRIPT belongs to the script. What holds for every
    job of a site stands in site.toml (docs/submit.md).

    Parameters
    ----------
    script_and_args
        The script and its own arguments.
    nodes
        Number of nodes. Default: that of topout.toml, else 1.
    time
        How long the job may run, such as 2h, 90m or 1d12h.
    gpus
        GPUs on each node; as many ranks are started there.
    account
        Who pays.
    partition
        Partition or queue.
    qos
        Quality of service.
    container
        Image for apptainer or singularity, such as image.sif.
    switches
        Leaf switches that the nodes may lie under; 1 keeps them together.
    scheduler
        slurm, lsf, pbs, sge or flux. Default: the one whose command is here.
    runs
        Folder of runs and jobs. Default: topout-runs.
    dry_run
        Print the job script, submit and write nothing.
    rehearse
        Run two steps here first, and submit only what gets through them.
    eval_job
        Script and arguments, as one word, to run on one node after the job has succeeded.
    """
    flags = {
        "scheduler": scheduler, "account": account, "partition": partition, "qos": qos, "time": time,
        "gpus_per_node": gpus, "container": container, "switches": switches,
    }  # fmt: skip
    spec = _asked_of_run(run_option, script_and_args)
    site = resolve_site(flags, site_files(find_config(None if spec.is_module else spec.script), os.environ))
    name, reason = choose_scheduler(site, os.environ)
    nodes = _at_least_one("--nodes", (spec.nodes or 1) if nodes is None else nodes)
    check_min_nodes(spec, nodes)
    ranks_per_node = _ranks_per_node(spec, nodes, site)
    options = (
        _in_tasks(run_option, spec, nodes, ranks_per_node or 1)
        if site.container
        else _with_nodes(run_option, spec, nodes, name)
    )
    submission = Submission(
        scheduler=name,
        plugin=load_scheduler(name),
        site=site,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        outlives_nodes=spec.min_nodes is not None,
        options=(*options, *(("--runs", runs) if runs is not None else ())),
        script_words=script_and_args,
        name=_job_name(spec),
        folder=Path.cwd(),
        runs=Path(runs or spec.runs).absolute(),
        evaluation_words=_evaluation_words(eval_job, is_checked=not site.container),
    )
    if spec.script is not None and not spec.is_module and not site.container:
        with_target(spec)
    if dry_run:
        return _show(submission, reason)
    if rehearse:
        _rehearse(submission, run_option)
    return _submit(submission)


def _show(submission: Submission, reason: str) -> int:
    scripts = scripts_of(submission)
    rows = [("scheduler", submission.scheduler, reason)]
    rows += [row for row in shown_settings(submission.site) if row[0] != "scheduler"]
    for key, value, origin in rows:
        _talk(f"{key:18} {value:30} {origin}")
    if len(scripts) > 1:
        scripts.insert(1, "\n# ---- eval.sh, submitted after the job above ----\n")
    # bytes, since a script's arguments need not be text
    sys.stdout.buffer.write("".join(scripts).encode("utf-8", "surrogateescape"))
    sys.stdout.buffer.flush()
    return 0


def _rehearse(submission: Submission, run_option: Sequence[str]) -> None:
    num_ranks = 2 if (submission.ranks_per_node or 1) * submission.nodes > 1 else 1
    _talk(f"Rehearsal: two steps on {counted(num_ranks, 'rank')} here")
    kept = _flat(words for words in _grouped(run_option) if words[0] in _REHEARSED)
    rehearse_job(
        submission.site,
        submission.folder,
        [*topout_words(submission.site), "run", *kept],
        submission.script_words,
        num_ranks=num_ranks,
    )


def _submit(submission: Submission) -> int:
    job, evaluation_id = submit_job(submission)
    print(job.job_id or "unknown")
    _talk(f"Job     {job.job_id or 'without a number that topout can read'} ({submission.plugin.TITLE})")
    if evaluation_id:
        _talk(f"Then    {evaluation_id} evaluates")
    _talk(f"Script  {near(job.script)}\nOutput  {near(job.output)}")
    _talk(f"Next    topout watch {shlex.quote(near(job.path))}")
    return 0


def _asked_of_run(run_option: Sequence[str], script_and_args: Sequence[str]) -> RunSpec:
    """What `topout run` will understand; what it would refuse in the job is refused here."""
    words = [*run_option, "--", *script_and_args]
    asked = run_options.read_quickly(words)
    if asked is None:
        from topout.cli.run import run

        app = App(name="topout run", print_error=False, exit_on_error=False, default_parameter=DEFAULTS)
        app.default(run)
        # raises with an explanation
        _, bound, _ = app.parse_args(words)
        asked = dict(bound.arguments)
    spec = spec_from(asked)
    check_numbers(spec)
    return spec


def _grouped(run_option: Sequence[str]) -> list[list[str]]:
    """Each option with its value."""
    words = iter(run_option)
    return [[word] if word in run_options.FLAGS else [word, *itertools.islice(words, 1)] for word in words]


def _flat(groups: Iterable[list[str]]) -> list[str]:
    return [word for group in groups for word in group]


def _in_tasks(run_option: Sequence[str], spec: RunSpec, nodes: int, ranks_per_node: int) -> list[str]:
    """Options of `topout run` where the scheduler starts every rank, and how many was settled here."""
    kept = _flat(words for words in _grouped(run_option) if words[0] not in _OF_TASKS)
    is_asked = spec.num_ranks is not None or spec.per_node is not None
    # a task that is alone would take itself for the launcher of its host
    is_told = is_asked or nodes * ranks_per_node == 1
    return [*kept, *(("--per-node", str(ranks_per_node)) if is_told else ())]


def _with_nodes(run_option: Sequence[str], spec: RunSpec, nodes: int, scheduler: str) -> list[str]:
    """What was asked of the scheduler wins over a file that names other nodes, in the job as well."""
    is_other = spec.nodes not in (None, nodes)
    # Grid Engine is asked for slots, which it may take from fewer hosts; then the launcher says so
    may_be_fewer = scheduler == "sge" and nodes > 1
    return [*run_option, *(("--nodes", str(nodes)) if is_other or may_be_fewer else ())]


def _ranks_per_node(spec: RunSpec, nodes: int, site: Site) -> int | None:
    if isinstance(spec.per_node, int):
        _check_together(spec.num_ranks, _at_least_one("--per-node", spec.per_node), nodes)
        return spec.per_node
    if site.container and spec.per_node is not None:
        return _tasks_for(spec.per_node, spec.origins["per_node"], site)
    if spec.num_ranks is not None:
        if spec.num_ranks < 1 or spec.num_ranks % nodes:
            raise TopoutError(
                f"{spec.num_ranks} ranks do not share out evenly over {nodes} nodes.",
                why="a scheduler is asked for the same number of tasks on every node",
                do="use --per-node N, or a multiple of the nodes",
            )
        return spec.num_ranks // nodes
    return site.gpus_per_node or None


def _check_together(num_ranks: int | None, per_node: int, nodes: int) -> None:
    """As `topout run` would in the job."""
    if num_ranks not in (None, nodes * per_node):
        raise TopoutError(
            f"-n {num_ranks} and --per-node {per_node} contradict each other.",
            why=f"on {counted(nodes, 'host')} --per-node {per_node} gives {nodes * per_node} ranks",
            do="give one of the two",
        )


def _tasks_for(word: str, origin: str, site: Site) -> int:
    """One for each thing of a kind, where no launcher on the nodes can count them."""
    known = {"node": 1, "gpu": site.gpus_per_node}.get(word)
    if not known:
        raise TopoutError(
            f"--per-node {word} is not possible in a container.",
            why="there the scheduler starts the ranks, and must be told their number before anyone sees the nodes"
            + ("" if origin == "command line" else f"; {origin} says it"),
            do="--gpus 4, with as many as a node has" if word == "gpu" else "--per-node 2, with as many as a node has",
        )
    return known


def _evaluation_words(eval_job: str | None, *, is_checked: bool) -> tuple[str, ...]:
    if eval_job is None:
        return ()
    try:
        words = tuple(shlex.split(eval_job))
    except ValueError as error:
        raise TopoutError(
            f"--eval-job {eval_job!r} cannot be read.", why=str(error), do="write it as you would type it in a shell"
        ) from None
    if not words or not words[0].strip():
        raise TopoutError("--eval-job names no script.", why="it is empty", do="--eval-job 'eval.py --split test'")
    if is_checked:
        with_target(RunSpec(script=words[0]))
    return words


def _job_name(spec: RunSpec) -> str:
    """Plain letters, and one of them first, as all schedulers accept."""
    name = spec.script or "digits"
    stem = name.rpartition(".")[2] if spec.is_module else Path(name).stem
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in stem)[:40]
    return plain if plain[:1].isalpha() else f"job-{plain}".rstrip("-")


def _at_least_one(option: str, value: int) -> int:
    if value < 1:
        raise TopoutError(f"{option} {value} is not possible.", why="it must be at least 1", do=f"try {option} 1")
    return value


def _talk(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
