"""A real Slurm over the laboratory's nodes: slurmctld on the login node, a slurmd on each other, a private munge.

    with Nodes(2) as nodes, Slurm(nodes, folder) as slurm:
        slurm.run(["srun", "-N2", "-l", "hostname"])

No systemd, nothing in /etc; up in about a second. Times are short so that tests can wait for them: a requeued job may
start again after 10 s, a job that ignores SIGTERM is killed after 5 s, a node that is silent for 20 s is down.
Partition `urgent` preempts jobs of the default partition `debug`, which are requeued 20 s after the warning signal.
Not for accounting: there is no slurmdbd, so `sacct` has nothing to say; ask `slurm.job`.
"""

import os
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.lab.nodes import Node, Nodes

_CONFIGURATION = """ClusterName=lab
SlurmctldHost=login({login})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# a requeued job waits as long as a credential lives
AuthInfo=socket={folder}/munge/socket,cred_expire=10
CredType=cred/munge
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
TopologyPlugin=topology/tree
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
SlurmctldParameters=preempt_send_user_signal
MpiDefault=none
ReturnToService=2
JobRequeue=1
KillWait=5
SlurmdTimeout=20
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=1,sched_min_interval=100000,batch_sched_delay=0,bf_interval=1,max_switch_wait=5
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=20
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""

ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"}


class Slurm:
    """A running Slurm; its jobs and daemons end with the `with` block.

    Commands run on the login node unless a node is asked: `nodes[0].run([...], env=slurm.environment)`.
    `nodes_per_switch`: how many neighbours share a leaf switch, for `--switches`.
    """

    def __init__(self, nodes: Nodes, folder: Path, *, nodes_per_switch: int = 2) -> None:
        self.nodes = nodes
        self.folder = folder.resolve()
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": nodes.environment["PATH"]}
        self._nodes_per_switch = nodes_per_switch
        self._num_scripts = 0

    def __enter__(self) -> "Slurm":
        for name in ("munge", "state", "log", *(f"spool.{node.name}" for node in self.nodes)):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "munge").chmod(0o755)
        try:
            self._write_configuration()
            self._start_daemons()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write_configuration(self) -> None:
        num_cores = max(max(node.cores) for node in self.nodes) + 1
        lines = []
        for node in self.nodes:
            # Cores are numbered as the machine numbers them; those of the other nodes are kept from jobs.
            kept = ",".join(str(core) for core in range(num_cores) if core not in node.cores)
            lines.append(
                f"NodeName={node.name} NodeAddr={node.address} CPUs={num_cores} Boards=1 SocketsPerBoard=1 "
                f"CoresPerSocket={num_cores} ThreadsPerCore=1 RealMemory=4000 State=UNKNOWN"
                + (f" CpuSpecList={kept}" if kept else "")
            )
        configuration = _CONFIGURATION.format(
            login=self.nodes.login.address, folder=self.folder, nodes="\n".join(lines)
        )
        (self.folder / "slurm.conf").write_text(configuration)
        names = [node.name for node in self.nodes]
        leaves = [names[at : at + self._nodes_per_switch] for at in range(0, len(names), self._nodes_per_switch)]
        switches = [f"SwitchName=leaf{number} Nodes={','.join(leaf)}" for number, leaf in enumerate(leaves, 1)]
        switches.append(f"SwitchName=spine Switches=leaf[1-{len(leaves)}]")
        (self.folder / "topology.conf").write_text("\n".join(switches) + "\n")

    def _start_daemons(self) -> None:
        key = self.folder / "munge/key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={self.folder}/munge/{name}" for option, name in files.items()]
        self.run(["munged", "--force", *options], check=True)
        self.run(["slurmctld", "-f", self.environment["SLURM_CONF"]], check=True)
        for node in self.nodes:
            self.start_node(node)
        self.wait_until_idle()

    def start_node(self, node: Node) -> None:
        """Starts the node's slurmd, at first or after `kill_node`."""
        node.run(["slurmd", "-f", self.environment["SLURM_CONF"], "-N", node.name], env=self.environment, check=True)

    def run(self, command: Sequence[object], *, env: Mapping[str, str] | None = None, **more: Any) -> Any:
        """Runs a command on the login node, as `Node.run` does."""
        return self.nodes.login.run(command, env={**self.environment, **(env or {})}, **more)

    def popen(self, command: Sequence[object], *, env: Mapping[str, str] | None = None, **more: Any) -> Any:
        """Starts a command on the login node, as `Node.popen` does."""
        return self.nodes.login.popen(command, env={**self.environment, **(env or {})}, **more)

    def sbatch(self, script: str, *options: str, cwd: Path | None = None) -> int:
        """Submits a job script and returns the job's number; what it says, `output` returns."""
        self._num_scripts += 1
        path = self.folder / f"script-{self._num_scripts}.sh"
        path.write_text(script if script.startswith("#!") else f"#!/bin/sh\n{script}")
        said = self.run(
            ["sbatch", "--parsable", "--open-mode=append", f"--output={self.folder}/job-%j.out", *options, path],
            cwd=cwd or self.folder,
            check=True,
        )
        return int(said.stdout)

    def output(self, job: int) -> str:
        """What a job of `sbatch` has said so far, in all its starts."""
        path = self.folder / f"job-{job}.out"
        return path.read_text() if path.exists() else ""

    def job(self, job: int) -> dict[str, str]:
        """What Slurm knows of a job, by Slurm's names: JobState, ExitCode, Reason, Restarts, NodeList, …"""
        said = self.run(["scontrol", "show", "job", "--oneliner", job], check=True).stdout
        return dict(re.findall(r"(\S+?)=(\S*)", said))

    def wait(self, job: int, *, states: Collection[str] = ENDED, timeout: float = 120) -> dict[str, str]:
        """Waits until a job has ended, or is in one of the given states, and returns what Slurm knows of it."""
        known: dict[str, str] = {}

        def is_there() -> bool:
            known.update(self.job(job))
            return known["JobState"] in states

        _await(is_there, timeout, lambda: f"job {job} is {known}\n{self.output(job)}")
        return known

    def cancel(self, job: int, *options: str) -> None:
        """`scancel`; with "--signal=USR1" a signal to the job's steps, with "--batch" to its script."""
        self.run(["scancel", *options, job], check=True)

    def requeue(self, job: int) -> None:
        self.run(["scontrol", "requeue", job], check=True)

    def drain(self, node: Node) -> None:
        """No new jobs on the node; those that run go on."""
        self._update(node, "drain", "Reason=drained")

    def resume(self, node: Node) -> None:
        """One that has come back by itself cannot be resumed, and need not."""
        self._update(node, "resume", check=False)

    def _update(self, node: Node, state: str, *more: str, check: bool = True) -> None:
        self.run(["scontrol", "update", f"NodeName={node.name}", f"State={state}", *more], check=check)

    def kill_node(self, node: Node) -> None:
        """Kills the node's slurmd and all else that runs there; `start_node` brings it back."""
        node.kill_processes()

    def node_states(self) -> dict[str, str]:
        """Node name -> state in Slurm's words; "*" after a state: the node does not answer."""
        said = self.run(["sinfo", "--noheader", "--Node", "--format=%N %T", "--partition=debug"], check=True).stdout
        return dict(line.split() for line in said.splitlines())

    def wait_until_idle(self, timeout: float = 60) -> None:
        def is_idle() -> bool:
            return set(self.node_states().values()) == {"idle"}

        _await(is_idle, timeout, lambda: f"nodes are {self.node_states()}\n{self._logs()}")

    def mend(self) -> None:
        """All jobs cancelled, links and nodes as at the start: what a test leaves to the next one."""
        for node in self.nodes:
            node.mend_link()
        self.run(["scancel", "--full", "--user=root"], check=True)
        for node in self.nodes:
            if not node.processes("slurmd"):
                self.start_node(node)
        for name, state in self.node_states().items():
            if state.startswith(("drain", "down")):
                self.resume(next(node for node in self.nodes if node.name == name))
        self.wait_until_idle()

    def _logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in sorted((self.folder / "log").iterdir()))

    def close(self) -> None:
        """Ends daemons, jobs and whatever else was started in the laboratory; the nodes stay."""
        for node in (*self.nodes, self.nodes.login):
            node.kill_processes()


def _await(claim: Callable[[], bool], timeout: float, tell: Callable[[], str]) -> None:
    end = time.monotonic() + timeout
    while not claim():
        assert time.monotonic() < end, f"{timeout} s are over: {tell()}"
        time.sleep(0.1)
