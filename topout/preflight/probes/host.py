"""The probe of one host: `python -m topout.preflight.probes.host ORDERS`, started by the launcher once on every host.

Goes through its stages in the same order everywhere, writes what it has found after each, and never fails because one
stage does: a hanging file system must not hide what the others found. Judges nothing.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from topout.host.gpu_links import read_gpu_links
from topout.preflight.facts import RUN_FOLDER, Facts, Framework, Kernel, Link, findings_name
from topout.preflight.orders import Orders
from topout.preflight.probes import clocks, collectives, imports, machine, sockets, storage
from topout.preflight.probes.interfaces import interface_with, speed_bits_per_s
from topout.preflight.probes.journal import Journal
from topout.preflight.probes.limits import read_limits
from topout.preflight.probes.meeting import Meeting, meet
from topout.schema.run_folder import write_whole
from topout.schema.world import Host

_LEAVE_S = 3.0
"""After the deadline, when a probe leaves whatever it is at."""


def main(arguments: list[str]) -> int:
    orders = Orders.from_text(arguments[0] if arguments else "{}")
    if int(os.environ.get("LOCAL_RANK", "0")) != 0:
        # started once a rank rather than once a host: one of them is enough
        return 0
    # hosts without names in any directory are a finding of ours, and not one warning of torch's for each connection
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    load = os.getloadavg()[0]
    deadline_s = time.monotonic() + orders.limit_s
    host = machine.this_host()
    number = int(os.environ.get("GROUP_RANK", "0"))
    run = Path(os.environ["TOPOUT_RUN"]) if "TOPOUT_RUN" in os.environ else None
    path = run / findings_name(number) if run else None
    if path is not None:
        path.parent.mkdir(exist_ok=True)
    facts = Facts(host=host.name, host_number=number)
    journal = Journal(facts, path, deadline_s=deadline_s, talks=orders.talks and number == 0)
    _leave_at(deadline_s + _LEAVE_S)
    # told to end, it still removes the files it made
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with meet(deadline_s=deadline_s) as meeting:
        Examination(journal, meeting, host, orders).run(load, run)
        journal.write(stage=None)
        _gather(meeting, journal.facts, run)
    return 0


def _gather(meeting: Meeting, facts: Facts, run: Path | None) -> None:
    """The first host keeps the findings of those that do not see its folder."""
    until_s = meeting.deadline_s + 0.8 * _LEAVE_S
    for number, found in enumerate(meeting.hand_in("findings", msgspec.to_builtins(facts), until_s)):
        path = run / findings_name(number) if run else None
        if found is not None and path is not None and not path.exists():
            with contextlib.suppress(OSError):
                write_whole(path, msgspec.json.encode(found))


class Examination:
    """All stages of one host."""

    def __init__(self, journal: Journal, meeting: Meeting, host: Host, orders: Orders) -> None:
        self._journal = journal
        self._meeting = meeting
        self._host = host
        self._orders = orders
        self._names: list[str] = []
        self._available_bytes: int | None = None

    def run(self, load: float, run: Path | None) -> None:
        stage, meeting, host = self._journal.stage, self._meeting, self._host
        interface = interface_with(meeting.address) if meeting.address else None
        speed = speed_bits_per_s(interface)
        self._journal.keep(address=meeting.address, interface=interface, interface_bits_per_s=speed)
        if meeting.problem:
            self._journal.miss("meeting", meeting.problem)
        self._names = [name or "?" for name in meeting.exchange("names", host.name)]
        stage("versions", machine.read_versions, lambda found: {"versions": found})
        stage("hardware", lambda: machine.read_hardware(host), lambda found: {"hardware": found})
        stage("GPU links", lambda: read_gpu_links(host), lambda found: {"gpu_links": found})
        stage("hwloc", lambda: machine.read_hwloc(host), lambda found: {"hwloc": found})
        stage("clock rate", machine.read_clock_hz, lambda found: {"cpu_clock_hz": found})
        stage("instructions", machine.read_flags, lambda found: {"cpu_flags": found})
        stage("clocks", lambda: clocks.read_clocks(meeting, self._names), self._clocks)
        limits = stage("limits", lambda: read_limits(load), lambda found: {"limits": found})
        self._available_bytes = limits.available_bytes if limits else None
        stage("links within a host", lambda: sockets.within_host(host.name), self._links)
        stage("links between hosts", lambda: sockets.between_hosts(meeting, self._names), self._links)
        # all try the same places, also where one host could keep no files
        has_run = False not in meeting.exchange(RUN_FOLDER, run is not None)
        for purpose, path in storage.places_of(self._orders.data, run if has_run else None):
            self._storage(purpose, path)
        stage("imports", lambda: imports.time_imports(meeting, self._orders.pythons), lambda found: {"imports": found})
        self._torch()
        stage("clocks at the end", lambda: clocks.read_clocks(meeting, self._names), self._clocks)

    def _storage(self, purpose: str, path: str) -> None:
        self._journal.stage(
            f"storage: {purpose}",
            lambda: storage.try_out(purpose, path, self._meeting),
            lambda found: {"places": (*self._journal.facts.places, found)},
        )

    def _torch(self) -> None:
        stage, num_gpus = self._journal.stage, len(self._host.gpus)
        has_torch = "torch" in self._journal.facts.versions and stage("torch", _import_torch, lambda found: {})
        # every host takes part, with torch or without: the others wait for its answer
        everywhere = self._meeting.exchange("torch", bool(has_torch), patience_s=30.0)
        if not has_torch:
            stage("kernels", self._kernels_of_numpy, self._kernels)
            return
        from topout.preflight.probes import framework, kernels

        # before anything wakes the GPU, since this forks
        stage("all-reduce within a host", lambda: collectives.within_host(self._host.name, num_gpus), self._links)
        stage("framework", lambda: framework.read_framework(num_gpus), self._framework)
        if all(everywhere):
            stage("all-reduce between hosts", self._all_reduce, self._links)
        sweeps, available = self._orders.kernels, self._available_bytes
        stage("kernels", lambda: kernels.time_kernels(sweeps=sweeps, available_bytes=available), self._kernels)
        if sweeps:
            from topout.preflight.probes.instruction_sets import compare_instruction_sets

            stage("instruction sets", lambda: compare_instruction_sets(self._journal.facts.cpu_flags), self._kernels)

    def _all_reduce(self) -> tuple[Link, ...]:
        return collectives.between_hosts(self._meeting, self._names, len(self._host.gpus))

    def _kernels_of_numpy(self) -> tuple[Kernel, ...]:
        from topout.preflight.probes.kernels import time_kernels_of_numpy

        return time_kernels_of_numpy(self._available_bytes)

    def _framework(self, found: Framework) -> dict[str, Any]:
        more = {"CUDA": found.cuda, "HIP": found.hip, "cuDNN": found.cudnn, "NCCL": found.nccl}
        known = {name: value for name, value in more.items() if value}
        return {"framework": found, "versions": {**self._journal.facts.versions, **known}}

    def _links(self, found: Link | tuple[Link, ...]) -> dict[str, Any]:
        return {"links": (*self._journal.facts.links, *(found if isinstance(found, tuple) else (found,)))}

    def _kernels(self, found: tuple[Kernel, ...]) -> dict[str, Any]:
        return {"kernels": (*self._journal.facts.kernels, *found)}

    def _clocks(self, found: tuple[Any, ...]) -> dict[str, Any]:
        return {"clocks": (*self._journal.facts.clocks, *found)}


def _import_torch() -> bool:
    import torch  # noqa: F401

    return True


def _leave_at(at_s: float) -> None:
    """A stage that hangs, as on a dead file server, must not keep the job: what was written by then is what counts."""

    def leave() -> None:
        time.sleep(max(at_s - time.monotonic(), 0))
        cleaning = threading.Thread(target=storage.remove_own, daemon=True)
        cleaning.start()
        # on the file system that hangs this hangs too
        cleaning.join(1.0)
        os._exit(0)

    threading.Thread(target=leave, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
