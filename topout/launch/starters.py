"""Starts a launcher on every host of an allocation, by the scheduler's own commands, and awaits them.

Not inside a container, which has none of those commands: there the scheduler starts the tasks, see `tasks`.
"""

from __future__ import annotations

import os
import sys
import time

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
from topout.launch.started_command import StartedCommand
from topout.launch.variables import remove_private_files
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.spec import RunSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from topout.launch.company import Company

_LEAVE_S = 5.0
_TERMINATE_S = 5.0
_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 (`pathlib` takes longer than all this file)


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
    # loaded while the scheduler starts the others; `rounds` is what comes next
    import topout.launch.rounds  # noqa: F401
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
        # launchers that have not come yet would look for a head that is gone
        starters.close(patience_s=0.0)
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
        command = [sys.executable, "-P", f"{_HERE}/agent_process.py"]
        environment = {**self._plugin.start_environment(os.environ), **variables}
        self._commands: list[StartedCommand] = []
        allow_open_files(2 * num_hosts)
        for words in self._plugin.start_commands(allocation, command, num_hosts=num_hosts, variables=variables):
            try:
                self._commands.append(StartedCommand(words, environment))
            except OSError as error:
                self.close()
                raise TopoutError(
                    f"{words[0]} cannot be started.",
                    why=error.strerror or str(error),
                    do=f"{self._plugin.TITLE}'s commands must be on PATH; inside a container, start topout with "
                    "srun or mpirun, once for every rank",
                    exit_code=ExitCode.ENVIRONMENT,
                ) from error

    def check(self) -> None:
        for command in self._commands:
            code = command.poll()
            if code is not None:
                words = command.said()[-2000:].decode(errors="replace").strip()
                raise TopoutError(
                    f"{self._plugin.TITLE} did not start topout on all hosts: its command ended with {code}.",
                    why=words or "it said nothing",
                    do="run the same by hand with `hostname`, to see whether the hosts answer",
                    exit_code=ExitCode.ENVIRONMENT,
                )

    def close(self, patience_s: float = _LEAVE_S) -> None:
        """They end when their launchers do; who does not is ended, and with it what it started elsewhere."""
        self._await_ends(patience_s)
        for command in self._commands:
            # killed at once, srun and its like would leave what they started on the hosts to itself
            command.terminate()
        self._await_ends(_TERMINATE_S)
        for command in self._commands:
            command.kill()
            command.close()
        remove_private_files()

    def _await_ends(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for command in self._commands:
            command.await_end(max(0.0, deadline - time.monotonic()))
