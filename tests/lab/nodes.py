"""Real nodes on one machine: namespaces with their own address, host name, clock and a rate-limited link.

    with Nodes(2, rate="1gbit") as nodes:
        nodes[0].run(["ping", "-c1", "n2"])

Each node has its own network, host name, /etc/hosts, /sys, /dev/shm and monotonic clock (boot times differ, as they do
on real nodes); files, users and process numbers are the machine's. A further node, `nodes.login`, holds the switch
that the links meet in. Nothing outside these namespaces is touched, so any number of laboratories stand side by side
with the same addresses. The machine's own network cannot reach them: run clients on `nodes.login`.
Needs root and iproute2. Not a model of latency: the kernel here has no netem.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from tests.lab import leftovers

NETWORK = "10.77.0"
BOOTED_APART_S = 1000
"""How much older each node's monotonic clock is than the one before: code that compares them across nodes fails."""

DAEMONS = ("munged", "slurmctld", "slurmscriptd", "slurmd")
"""Programs that outlive a test."""

_HOLD = """set -e
mkdir "$FOLDER/sys-$NAME"
mount -t sysfs sysfs "$FOLDER/sys-$NAME"
mount --rbind /sys/fs/cgroup "$FOLDER/sys-$NAME/fs/cgroup"
mount --move "$FOLDER/sys-$NAME" /sys
mount -t tmpfs tmpfs /dev/shm
mount --bind "$FOLDER/hosts" /etc/hosts
hostname "$NAME"
ip link set lo up
echo reno >/proc/sys/net/ipv4/tcp_congestion_control
echo $$
exec sleep infinity
"""
# A fresh sysfs shows the node's own interfaces; without the cgroups bound back into it slurmd does not start. A host's
# BBR would be inherited, whose timers come late where nodes share cores: 1 MB among eight took 32 ms instead of 21.

# Variables by which the tests' own process would be taken for a task of a job, or for a rank of another.
_OF_A_JOB = (
    "RANK",
    "LOCAL_",
    "WORLD_SIZE",
    "MASTER_",
    "GROUP_",
    "TORCHELASTIC_",
    "TOPOUT_",
    "SLURM_",
    "OMPI_",
    "PMI",
    "HYDRA_",
)

_ENTER = """#!/bin/sh
exec nsenter --target {pid} --net --uts --mount {time} --wdns="$PWD" taskset -c {cores} "$@"
"""

_RSH = """#!/bin/sh
# Starts a command on a node as rsh does: RSH [OPTIONS] NODE COMMAND…; the shell there reads the words again.
while :; do case "$1" in -l) shift 2 ;; -*) shift ;; *) break ;; esac; done
node=$1; shift
case "$node" in
{cases}
*) echo "no such node: $node" >&2; exit 1 ;;
esac
exec "$enter" sh -c "$*"
"""


class Node:
    """One host of the laboratory; commands started by `run` and `popen` see its network, name and cores."""

    def __init__(self, name: str, address: str, cores: Sequence[int], older_s: int, nodes: "Nodes") -> None:
        self.name = name
        self.address = address
        self.cores = tuple(cores) or tuple(sorted(os.sched_getaffinity(0)))
        self._nodes = nodes
        self._enter = nodes.folder / f"on-{name}"
        self._rate: str | None = None
        self._is_up = True
        self._hold(older_s)

    def _hold(self, older_s: int) -> None:
        folder = self._nodes.folder
        has_time = Path("/proc/self/ns/time").exists()
        clock = ["--time", "--monotonic", str(older_s), "--boottime", str(older_s)] if has_time else []
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "--mount", *clock, "--fork", "--kill-child", "sh", "-c", _HOLD],
            env={**self._nodes.environment, "FOLDER": str(folder), "NAME": self.name},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a Ctrl-C at the terminal ends the test first, then its nodes
        )
        said = _of(self._holder.stdout).readline()
        if not said:
            raise RuntimeError(f"node {self.name} did not start: {_of(self._holder.stderr).read()}")
        self.pid = int(said)
        self._held_by = {self.pid, self._holder.pid}
        self.network = leftovers.network_of(self.pid) or ""
        enter = _ENTER.format(pid=self.pid, time="--time" if has_time else "", cores=_list(self.cores))
        self._enter.write_text(enter)
        self._enter.chmod(0o755)

    def forget(self) -> None:
        """Reaps the process that held the node, once it has been killed."""
        self._holder.communicate(timeout=10)

    @property
    def prefix(self) -> list[str]:
        """Words that run the words after them on this node, in the working folder they are run in."""
        return [str(self._enter)]

    def popen(
        self,
        command: Sequence[object],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        **more: Any,
    ) -> "subprocess.Popen[str]":
        """Starts a command here, its output in pipes; `env` is added to `nodes.environment`.

        The process number is the command's own, so signals reach it.
        """
        more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **more}
        words = [*self.prefix, *map(str, command)]
        return subprocess.Popen(words, env={**self._nodes.environment, **(env or {})}, cwd=cwd, **more)

    def run(
        self,
        command: Sequence[object],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 120,
        check: bool = False,
        stdin: str = "",
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a command here to its end, and returns its output and exit code."""
        process = self.popen(command, env=env, cwd=cwd, stdin=subprocess.PIPE)
        try:
            stdout, stderr = process.communicate(stdin, timeout=timeout)
        except subprocess.TimeoutExpired as expired:
            process.kill()
            process.wait()
            said = (_text(expired.stdout) + _text(expired.stderr))[-4000:]
            raise AssertionError(
                f"{shlex.join(map(str, command))} on {self.name}: {timeout} s are over; {said}"
            ) from None
        done = subprocess.CompletedProcess([*map(str, command)], process.returncode, stdout, stderr)
        if check and done.returncode:
            raise AssertionError(f"{shlex.join(map(str, command))} on {self.name}: {done}")
        return done

    def processes(self, *names: str) -> list[int]:
        """Process numbers of all that runs here, however it was started; only those of the given programs, if any."""
        pids = [pid for pid in leftovers.processes_in([self.network]) if pid not in self._held_by]
        return [pid for pid in pids if not names or _program(pid) in names]

    def kill_processes(self, *, spare: Collection[int] = ()) -> None:
        """Kills all that runs here, as a power cut would; the node itself stays."""
        left = leftovers.kill_all([self.network], spare={*self._held_by, *spare})
        assert not left, f"still running on {self.name}: {left}"

    def set_link(self, *, rate: str | None = None, up: bool | None = None) -> None:
        """Changes the link's rate (both ways), cuts it or mends it; what is not named stays."""
        if rate is not None:
            self._rate = rate
            shape = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
            self.run(["tc", "qdisc", "replace", "dev", "eth0", *shape], check=True)
            self._nodes.login.run(["tc", "qdisc", "replace", "dev", self.name, *shape], check=True)
        if up is not None:
            self._is_up = up
            self._nodes.login.run(["ip", "link", "set", self.name, "up" if up else "down"], check=True)

    def mend_link(self) -> None:
        """The link as it was when the node started."""
        if not self._is_up:
            self.set_link(up=True)
        if self._rate != self._nodes.rate:
            self.set_link(rate=self._nodes.rate)


class Nodes:
    """A laboratory of nodes n1, n2, … and the login node; a context manager that leaves nothing behind.

    `cores_per_node`: 1 gives n1 and n2 different cores (as far as there are cores), 2 on a machine of two lets them
    share both. `rate` is in tc's words; an unlimited link is a fast one ("100gbit").
    """

    def __init__(self, num_nodes: int = 2, rate: str = "1gbit", *, cores_per_node: int = 1) -> None:
        self.rate = rate
        self.num_nodes = num_nodes
        self.cores_per_node = cores_per_node

    def __enter__(self) -> "Nodes":
        leftovers.sweep()
        self.folder = Path(tempfile.mkdtemp(prefix="topout-lab-"))
        self.folder.chmod(0o755)
        self.rsh = self.folder / "rsh"
        self.environment = self._environment()
        self._nodes: list[Node] = []
        self._guard = subprocess.Popen(
            [sys.executable, "-I", leftovers.__file__, str(os.getpid()), str(self.folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
        )
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def _environment(self) -> dict[str, str]:
        """This process's variables less those of a job it may run in, with what MPI's launchers need."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith(_OF_A_JOB)}
        search = [str(Path(sys.executable).parent), variables.get("PATH", ""), "/usr/sbin", "/sbin"]
        return {
            **variables,
            "PATH": os.pathsep.join(search),
            leftovers.MARK: leftovers.mark_of(self.folder),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_plm_rsh_agent": str(self.rsh),
            "HYDRA_LAUNCHER": "rsh",
            "HYDRA_LAUNCHER_EXEC": str(self.rsh),
        }

    def _start(self) -> None:
        addresses = {f"n{number}": f"{NETWORK}.{number}" for number in range(1, self.num_nodes + 1)}
        addresses["login"] = f"{NETWORK}.254"
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
        (self.folder / "hosts").write_text("\n".join(lines) + "\n")
        for number, (name, address) in enumerate(addresses.items()):
            cores = [] if name == "login" else self._cores_of(number)
            node = Node(name, address, cores, BOOTED_APART_S * number, self)
            self._nodes.append(node)
            _of(self._guard.stdin).write(f"{node.network}\n".encode())
            _of(self._guard.stdin).flush()
        cases = "\n".join(f"{node.name}|{node.address}) enter={node.prefix[0]} ;;" for node in self._nodes)
        self.rsh.write_text(_RSH.format(cases=cases))
        self.rsh.chmod(0o755)
        *self._nodes, self.login = self._nodes
        self._connect()

    def _cores_of(self, number: int) -> list[int]:
        given = sorted(os.sched_getaffinity(0))
        first = number * self.cores_per_node
        return sorted({given[(first + more) % len(given)] for more in range(self.cores_per_node)})

    def _connect(self) -> None:
        lines = ["link add switch type bridge", f"addr add {self.login.address}/24 dev switch", "link set switch up"]
        for node in self:
            lines += [f"link add {node.name} type veth peer name eth0 netns {node.pid}"]
            lines += [f"link set {node.name} master switch up"]
        self.login.run(["ip", "-batch", "-"], stdin="\n".join(lines), check=True)
        for node in self:
            node.run(["ip", "-batch", "-"], stdin=f"addr add {node.address}/24 dev eth0\nlink set eth0 up", check=True)
            node.set_link(rate=self.rate)

    def mend(self) -> None:
        """Links as at the start, and nothing running but daemons: what a test leaves to the next one."""
        for node in (*self, self.login):
            node.kill_processes(spare=node.processes(*DAEMONS))
        for node in self:
            node.mend_link()

    def close(self) -> None:
        """Ends all processes of the laboratory, and with them the namespaces."""
        _of(self._guard.stdin).close()
        code = self._guard.wait(timeout=60)
        for node in [*self._nodes, *([self.login] if hasattr(self, "login") else [])]:
            node.forget()
        assert code == 0, "processes of the laboratory would not die"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return self.num_nodes

    def __getitem__(self, number: int) -> Node:
        return self._nodes[number]


def _list(cores: Sequence[int]) -> str:
    return ",".join(map(str, cores))


def _of(stream: IO[Any] | None) -> IO[Any]:
    assert stream is not None
    return stream


def _program(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return None


def _text(said: object) -> str:
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said or "")
