"""Starts a launcher on every host of an allocation, by the scheduler's own commands, and awaits them.

Not inside a container, which has none of those commands: there the scheduler starts the tasks, see `tasks`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from topout.host.open_files import allow_open_files
from topout.launch.allocation import Allocation
from topout.launch.detect import scheduler_plugin
from topout.launch.rendezvous import (
    HEAD_VARIABLE,
    INTERFACE_VARIABLE,
    TOKEN_VARIABLE,
    job_ports,
    listen,
    new_token,
    own_interface,
    route_address,
)  # fmt: skip
from topout.launch.signals import LauncherSignals
from topout.launch.variables import remove_private_files
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.spec import RunSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

    from topout.launch.company import Company

_LEAVE_S = 5.0


def start_through_scheduler(
    spec: RunSpec, allocation: Allocation, signals: LauncherSignals, say: Callable[[str], None]
) -> Company:
    num_hosts = spec.nodes or len(allocation.hosts)
    if num_hosts > len(allocation.hosts):
        raise _too_many_nodes(spec, allocation, num_hosts)
    own = route_address(allocation.hosts, own_interface(allocation.hosts, spec.interface), is_told=True)
    token = new_token()
    listener = listen(own, [*job_ports(allocation.job_id), 0])
    port = int(listener.getsockname()[1])
    variables = {HEAD_VARIABLE: f"{own}:{port}", TOKEN_VARIABLE: token}
    if spec.interface is not None:
        variables[INTERFACE_VARIABLE] = spec.interface
    starters = Starters(allocation, num_hosts, variables)
    # loaded while the scheduler starts the others
    from topout.launch.company import Company
    from topout.launch.gathering import Gathering
    from topout.launch.head import Head

    hosts = allocation.hosts[:num_hosts]
    try:
        with Gathering(listener, token, None) as gathering:
            links = gathering.await_all(
                num_hosts,
                timeout_s=spec.start_timeout_s,
                signals=signals,
                check=starters.check,
                missing=lambda arrived: ", ".join([h for n, h in enumerate(hosts) if n not in arrived][:8]),
            )
    except BaseException:
        starters.close()
        raise
    return Company(None, allocation, Head(links, None, token, say), starters)


def _too_many_nodes(spec: RunSpec, allocation: Allocation, num_hosts: int) -> TopoutError:
    origin = spec.origins.get("nodes", "command line")
    said, what = ("", "--nodes") if origin == "command line" else (f"; {origin} says it", "nodes there")
    return TopoutError(
        f"--nodes {num_hosts} is more than the job has.",
        why=f"it has {len(allocation.hosts)}: {', '.join(allocation.hosts[:8])}{said}",
        do=f"leave out {what}, or ask the scheduler for {num_hosts}: topout submit --nodes {num_hosts} …",
    )


class Starters:
    """The scheduler's own commands that run a launcher on every host."""

    def __init__(self, allocation: Allocation, num_hosts: int, variables: dict[str, str]) -> None:
        self._plugin: Any = scheduler_plugin(allocation.scheduler)
        command = [sys.executable, "-P", "-m", "topout.launch.agent"]
        environment = {**self._plugin.start_environment(os.environ), **variables}
        self._processes: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
        allow_open_files(2 * num_hosts)
        for words in self._plugin.start_commands(allocation, command, num_hosts=num_hosts, variables=variables):
            try:
                # in memory: it says little, and `tempfile` takes 5 ms to load
                output = os.fdopen(os.memfd_create("starter"), "w+b")
                # a session of its own: Ctrl-C is for this launcher to pass on
                process = subprocess.Popen(
                    words,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            except OSError as error:
                self.close()
                raise TopoutError(
                    f"{words[0]} cannot be started.",
                    why=error.strerror or str(error),
                    do=f"{self._plugin.TITLE}'s commands must be on PATH; inside a container, start topout with "
                    "srun or mpirun, once for every rank",
                    exit_code=ExitCode.ENVIRONMENT,
                ) from error
            self._processes.append((process, output))

    def check(self) -> None:
        for process, output in self._processes:
            if process.poll() is not None:
                output.seek(0)
                words = output.read()[-2000:].decode(errors="replace").strip()
                raise TopoutError(
                    f"{self._plugin.TITLE} did not start topout on all hosts: its command ended with "
                    f"{process.returncode}.",
                    why=words or "it said nothing",
                    do="run the same by hand with `hostname`, to see whether the hosts answer",
                    exit_code=ExitCode.ENVIRONMENT,
                )

    def close(self) -> None:
        """They end when their launchers do; who does not is ended."""
        deadline = time.monotonic() + _LEAVE_S
        for process, output in self._processes:
            _await_end(process, max(0.0, deadline - time.monotonic()))
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.close()
        remove_private_files()


def _await_end(process: subprocess.Popen[bytes], seconds: float) -> None:
    """As `process.wait` with a limit, which looks only every 50 ms."""
    with contextlib.suppress(subprocess.TimeoutExpired, AttributeError, OSError):
        pidfd = os.pidfd_open(process.pid)
        try:
            # not `select.select`, which knows no descriptor beyond 1,023
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            poll.poll(seconds * 1000)
        finally:
            os.close(pidfd)
        seconds = 0.0
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
