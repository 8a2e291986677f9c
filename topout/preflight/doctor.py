"""A doctor run: one probe on every host, started like any job, and a diagnosis of what they found.

On one machine without a scheduler the same job has one rank. Needs no root, and no torch: what torch would measure is
then said to be missing.
"""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import msgspec

from topout.launch.detect import detect_allocation
from topout.launch.job import JobResult, run_job
from topout.launch.rendezvous import new_token
from topout.launch.terminal import Terminal
from topout.preflight.diagnosis import Diagnosis, diagnose, to_json
from topout.preflight.facts import FACTS_VERSION, FOLDER, Facts
from topout.preflight.orders import KERNELS_LIMIT_S, QUICK_LIMIT_S, Orders
from topout.preflight.probes.meeting import SECRET_VARIABLE
from topout.schema.counted import counted
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.run_folder import RunFolder, write_whole
from topout.schema.spec import RunSpec

PROBE = "topout.preflight.probes.host"
DOCUMENT = "doctor.json"


@dataclass(frozen=True, kw_only=True)
class Examined:
    """What came of a doctor run."""

    exit_code: int
    diagnosis: Diagnosis | None
    """None in a task that only took part, and when the run was interrupted."""
    document: Path | None = None
    last_words: str | None = None
    """Why the job of the probes ended early, when it did."""


def examine(
    orders: Orders, terminal: Terminal, *, nodes: int | None, interface: str | None, runs: str, start_timeout_s: float
) -> Examined:
    started_at = datetime.now().astimezone().isoformat(timespec="seconds")
    start_s = time.monotonic()
    spec = RunSpec(
        script=PROBE,
        is_module=True,
        args=(orders.to_text(),),
        nodes=nodes,
        per_node=1,
        interface=interface,
        start_timeout_s=start_timeout_s,
        record=False,
        # beside the runs, not among them: `topout analyze` takes the newest run
        runs=str(Path(runs) / FOLDER),
        origins=dict.fromkeys(("nodes", "interface", "start_timeout_s"), "command line"),
    )
    _let_probes_meet()
    result = run_job(spec, terminal)
    if result.status in ("followed", "interrupted"):
        return Examined(exit_code=result.exit_code, diagnosis=None, last_words=result.last_words)
    if result.folder is None:
        raise TopoutError(
            "The probes had no place for their findings.",
            why=f"neither {runs} nor the temporary folder can be written",
            do="topout doctor --runs DIR, on a file system that all hosts see",
            exit_code=ExitCode.ENVIRONMENT,
        )
    hosts = read_findings(result.folder)
    names = _hosts_started(result.folder)
    if not hosts:
        raise _no_findings(result, names)
    present = {facts.host_number for facts in hosts}
    diagnosis = diagnose(
        hosts,
        num_hosts=max(len(names), len(hosts)),
        absent=[name for number, name in enumerate(names) if number not in present],
        sweeps=orders.kernels,
        started_at=started_at,
        duration_s=time.monotonic() - start_s,
    )
    return Examined(
        exit_code=ExitCode.ENVIRONMENT if diagnosis.is_unfit else ExitCode.FINE,
        diagnosis=diagnosis,
        document=_keep(diagnosis, result.folder),
        last_words=result.last_words,
    )


def _let_probes_meet() -> None:
    """They inherit a secret of this run: there may be no key in a home folder that all hosts share.

    Tasks that a scheduler started inherit nothing from each other, and have met by the job's token.
    """
    allocation = detect_allocation(os.environ)
    if allocation is not None and allocation.task is None:
        os.environ[SECRET_VARIABLE] = new_token()


def orders_for(*, data: str | None, kernels: bool, pythons: Sequence[str], talks: bool) -> Orders:
    return Orders(
        data=None if data is None else str(Path(data).absolute()),
        kernels=kernels,
        pythons=tuple(pythons),
        talks=talks,
        limit_s=KERNELS_LIMIT_S if kernels else QUICK_LIMIT_S,
    )


def read_findings(folder: RunFolder) -> list[Facts]:
    """In the order of hosts; files that cannot be read count as none."""
    found = []
    for path in sorted((folder.path / FOLDER).glob("rank-*.json")):
        try:
            facts = msgspec.json.decode(path.read_bytes(), type=Facts)
        except (OSError, msgspec.MsgspecError):
            continue
        if facts.version == FACTS_VERSION:
            found.append(facts)
    names = [facts.host for facts in found]
    # two hosts of one name are told apart by their number
    return [
        replace(facts, host=f"{facts.host}#{facts.host_number}") if names.count(facts.host) > 1 else facts
        for facts in found
    ]


def _hosts_started(folder: RunFolder) -> list[str]:
    try:
        return [str(host["name"]) for host in json.loads(folder.run_json.read_text())["hosts"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _no_findings(result: JobResult, names: Sequence[str]) -> TopoutError:
    # launchers note where they could not write
    elsewhere = [note for note in result.notes if result.folder and result.folder.text in note]
    do = f"see {result.folder.path}/logs" if result.folder else "try topout doctor on one host first"
    last = (result.last_words or next(iter(elsewhere), "no probe wrote anything")).strip().splitlines()[-1]
    return TopoutError(
        f"No findings of {counted(len(names), 'host')}.",
        why=last,
        do="topout doctor --runs DIR, on a file system that all hosts see" if elsewhere else do,
        exit_code=ExitCode.ENVIRONMENT,
    )


def _keep(diagnosis: Diagnosis, folder: RunFolder) -> Path | None:
    path = folder.path / DOCUMENT
    try:
        write_whole(path, to_json(diagnosis))
    except OSError:
        # a full file system is among the findings, and no reason not to print them
        return None
    return path
