"""A real Grid Engine over the laboratory's nodes: sge_qmaster on the login node, an sge_execd on each other.

    with Nodes(2) as nodes, GridEngine(nodes, folder) as engine:
        engine.qsub("hostname\n", "-pe", "lab", "4")

No systemd, nothing in /var or /etc; up in a few seconds. Two slots a node, one queue `all.q`, and the parallel
environment `lab`, which fills nodes in turns and lets jobs start tasks on them (`qrsh -inherit`). A job that asks for
-notify is warned 5 s before it is killed. For `Nodes` of its own: mending those of the session would kill its daemons.
"""

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.lab.nodes import Nodes

_PROGRAMS = Path("/usr/lib/gridengine")
_DATA = Path("/usr/share/gridengine")
_LINKS = ("bin", "lib", "utilbin")

_BOOTSTRAP = """admin_user none
default_domain none
ignore_fqdn true
spooling_method classic
spooling_lib libspoolc
spooling_params {folder}/default/common;{folder}/spool
binary_path {programs}
qmaster_spool_dir {folder}/spool
security_mode none
listener_threads 2
worker_threads 2
scheduler_threads 1
"""
_PARALLEL_ENVIRONMENT = """pe_name lab
slots 999
user_lists NONE
xuser_lists NONE
start_proc_args NONE
stop_proc_args NONE
allocation_rule $round_robin
control_slaves TRUE
job_is_first_task FALSE
urgency_slots min
accounting_summary FALSE
qsort_args NONE
"""
_CHANGES = {
    "hostlist": "{hosts}",
    "load_thresholds": "NONE",
    "pe_list": "lab",
    "slots": "2",
    "shell": "/bin/bash",
    "shell_start_mode": "unix_behavior",
    "rerun": "TRUE",
    "notify": "00:00:05",
    # the only folder that nodes do not share; one that a node removes must not be another's
    "tmpdir": "/dev/shm",
}
"""Of the queue, against Grid Engine's template."""


class GridEngine:
    """A running Grid Engine; its jobs and daemons end with the `with` block. Commands run on the login node."""

    def __init__(self, nodes: Nodes, folder: Path) -> None:
        self.nodes = nodes
        self.folder = folder.resolve()
        self.environment = {
            "SGE_ROOT": str(self.folder),
            "SGE_CELL": "default",
            "SGE_CLUSTER_NAME": "lab",
            "SGE_QMASTER_PORT": "6444",
            "SGE_EXECD_PORT": "6445",
        }
        self._num_scripts = 0

    def __enter__(self) -> "GridEngine":
        try:
            self._write_files()
            self._start_master()
            self._start_nodes()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write_files(self) -> None:
        for name in ("default/common", "spool/job_scripts", "execd"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "util").symlink_to(_DATA / "util")
        # Debian's own links leave out 64-bit ARM
        architecture = subprocess.run([_DATA / "util/arch"], capture_output=True, text=True, check=True).stdout.strip()
        for name in _LINKS:
            (self.folder / name).mkdir()
            (self.folder / name / architecture).symlink_to(_PROGRAMS)
        common = self.folder / "default/common"
        (common / "bootstrap").write_text(_BOOTSTRAP.format(folder=self.folder, programs=_PROGRAMS))
        (common / "act_qmaster").write_text("login\n")
        changes = {"execd_spool_dir": str(self.folder / "execd"), "min_uid": "0", "min_gid": "0"}
        (self.folder / "global").write_text(_changed((_DATA / "default-configuration").read_text(), changes))

    def _start_master(self) -> None:
        places = f"{self.folder}/default/common;{self.folder}/spool"
        self.run([_PROGRAMS / "spoolinit", "classic", "libspoolc", places, "init"], check=True)
        defaults = {
            "configuration": self.folder / "global",
            "complexes": _DATA / "util/resources/centry",
            "usersets": _DATA / "util/resources/usersets",
            "managers": "root",
        }
        for what, source in defaults.items():
            self.run([_PROGRAMS / "spooldefaults", what, source], check=True)
        self._start_daemon("login", "sge_qmaster")
        self._await(lambda: self.run(["qconf", "-sh"]).returncode == 0)
        for node in self.nodes:
            self.run(["qconf", "-ah", node.name], check=True)
        for name in ("login", *(node.name for node in self.nodes)):
            self.run(["qconf", "-as", name], check=True)
        quick = {"schedule_interval": "0:0:1", "flush_submit_sec": "1", "flush_finish_sec": "1"}
        self._configure("-Msconf", _changed(self.run(["qconf", "-ssconf"], check=True).stdout, quick))
        self._configure("-Ap", _PARALLEL_ENVIRONMENT)

    def _start_nodes(self) -> None:
        for node in self.nodes:
            self._start_daemon(node.name, "sge_execd")
        hosts = " ".join(node.name for node in self.nodes)
        changes = {"qname": "all.q", **{name: value.format(hosts=hosts) for name, value in _CHANGES.items()}}
        self._configure("-Aq", _changed(self.run(["qconf", "-sq"], check=True).stdout, changes))
        # a host that has not reported its load yet has no processors
        self._await(lambda: all(words[2] != "-" for words in self._hosts()))

    def _hosts(self) -> list[list[str]]:
        return [line.split() for line in self.run(["qhost"]).stdout.splitlines()[3:]] or [["", "", "-"]]

    def _start_daemon(self, name: str, program: str) -> None:
        node = next(node for node in (*self.nodes, self.nodes.login) if node.name == name)
        command = ["sh", "-c", f"exec {_PROGRAMS / program} > /dev/null 2>&1"]
        node.run(command, env=self.environment, cwd=self.folder, check=True)

    def _configure(self, option: str, text: str) -> None:
        path = self.folder / f"qconf{option}"
        path.write_text(text)
        self.run(["qconf", option, path], check=True)

    def _await(self, claim: Any, timeout: float = 60) -> None:
        end = time.monotonic() + timeout
        while not claim():
            assert time.monotonic() < end, f"{timeout} s are over: {self._messages()}"
            time.sleep(0.2)

    def _messages(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("**/messages")))

    def run(self, command: Sequence[object], *, env: Mapping[str, str] | None = None, **more: Any) -> Any:
        """Runs a command on the login node, as `Node.run` does."""
        return self.nodes.login.run(command, env={**self.environment, **(env or {})}, **more)

    def submit(self, script: str, *options: str, cwd: Path | None = None) -> str:
        """Submits a job script and returns the job's number; what it says, `output` returns."""
        self._num_scripts += 1
        path = self.folder / f"script-{self._num_scripts}.sh"
        path.write_text(script if script.startswith("#!") else f"#!/bin/bash\n{script}")
        words = ["qsub", "-terse", "-V", "-cwd", "-j", "y", "-o", f"{self.folder}/job-$JOB_ID.out", *options, path]
        return str(self.run(words, cwd=cwd or self.folder, check=True).stdout.split(".")[0].strip())

    def qsub(self, script: str, *options: str, cwd: Path | None = None, timeout: float = 120) -> str:
        """What a job has said, once it has ended."""
        job = self.submit(script, *options, cwd=cwd)
        self._await(lambda: not self.is_known(job), timeout)
        return self.output(job)

    def is_known(self, job: str) -> bool:
        """Whether a job waits or runs; one that has ended is forgotten."""
        return bool(self.run(["qstat", "-j", job]).returncode == 0)

    def output(self, job: str) -> str:
        path = self.folder / f"job-{job}.out"
        return path.read_text() if path.exists() else ""

    def close(self) -> None:
        """Ends daemons and jobs; the nodes stay."""
        for node in (*self.nodes, self.nodes.login):
            node.kill_processes()


def _changed(text: str, changes: Mapping[str, str]) -> str:
    """Lines of `name value` with some values replaced."""
    lines = []
    for line in text.splitlines():
        name = line.split()[0] if line.split() else ""
        lines.append(f"{name} {changes[name]}" if name in changes else line)
    return "\n".join(lines) + "\n"
