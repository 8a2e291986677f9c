"""How long a trivial script takes to start and to return: topout beside torchrun, accelerate, srun and mpirun.

    python -m benchmarks.launch --rounds 10 --machine 2-cores         # about 10 minutes on two cores; needs root

A round runs every command once, in random order; a command's ratio is its time over that of its group's bare launcher
in the same round. Two times are taken, both from the moment the command is started: until the first line of the script
has run on the last of two ranks, and until the command has returned. Groups: this machine; two nodes of the laboratory
inside one Slurm allocation, started from its first node; two nodes by mpirun. A core is a node's own, so a launcher
shares it with the rank it starts. Compiled modules are kept (PYTHONDONTWRITEBYTECODE is unset), as where topout is
installed. Not for comparing groups with each other: their commands start in different places.
"""

import argparse
import contextlib
import itertools
import os
import platform
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from tests.lab.nodes import Nodes
from tests.lab.slurm import Slurm

RANKS = 2
LIMIT_S = 60
HELLO = """import time; now_ns = time.time_ns()
import os, sys
with open(os.path.join(sys.argv[1], f"{os.uname().nodename}-{os.getpid()}"), "w") as file:
    file.write(f"{now_ns} {os.environ.get('RANK')}/{os.environ.get('WORLD_SIZE')}")
"""
HOLD = """env -0 >env.tmp && mv env.tmp env && sleep infinity
"""
PROGRAMS = Path(sys.executable).parent
TOPOUT, TORCHRUN, ACCELERATE = (str(PROGRAMS / name) for name in ("topout", "torchrun", "accelerate"))
# not bound: Open MPI would bind the ranks of both nodes to what it takes for the first core of each, which is one
OPENMPI = ["mpirun.openmpi", "--oversubscribe", "--bind-to", "none", "-np", "2"]
MPICH = ["mpirun.mpich", "-np", "2"]
ports = itertools.count(29500)
"""A new one each time: torchrun's store of the round before may still hold the last one."""


@dataclass
class Row:
    """One command of a group, and what its rounds measured; a round that failed has None for both times."""

    group: str
    name: str
    words: object
    """The command up to the script, as a list or as a function that makes one."""
    is_bare: bool = False
    """The other commands of the group are compared with it."""
    makes_a_world: bool = True
    """Whether the script must find RANK and WORLD_SIZE; two worlds of one rank are a failure then."""
    at: object = None
    """The laboratory's node on which the command is started; None: this machine."""
    env: dict = field(default_factory=dict)
    first_s: list = field(default_factory=list)
    return_s: list = field(default_factory=list)
    why: str = ""

    def measure(self, folder):
        """Runs the command once in an empty folder."""
        hellos = Path(tempfile.mkdtemp(dir=folder))
        words = [*(self.words() if callable(self.words) else self.words), str(folder / "hello.py"), str(hellos)]
        environ = {"env": self.env} if self.at else {"env": {**os.environ, **self.env}}
        start = self.at.popen if self.at else subprocess.Popen
        with tempfile.TemporaryFile() as said:
            begun_ns = time.time_ns()
            process = start(
                words, cwd=folder, stdout=said, stderr=said, stdin=subprocess.DEVNULL, start_new_session=True, **environ
            )
            has_ended = is_over(process, LIMIT_S)
            ended_ns = time.time_ns()
            if not has_ended:
                end(process)
            code = process.wait() if has_ended else f"nothing within {LIMIT_S} s"
            said.seek(0)
            words_said = said.read().decode(errors="replace").strip().splitlines()
        ran = [path.read_text().split() for path in hellos.iterdir()]
        is_one_world = not self.makes_a_world or sorted(rank for _, rank in ran) == ["0/2", "1/2"]
        if code == 0 and len(ran) == RANKS and is_one_world:
            self.first_s.append((max(int(at_ns) for at_ns, _ in ran) - begun_ns) / 1e9)
            self.return_s.append((ended_ns - begun_ns) / 1e9)
            return
        self.first_s.append(None)
        self.return_s.append(None)
        ranks = ", ".join(rank for _, rank in ran) or "none"
        self.why = f"ended with {code}; ranks that ran: {ranks}; {words_said[-1][:160] if words_said else 'silent'}"


def is_over(process, seconds):
    """Whether it ended within so long; `process.wait` with a limit would look only every 50 ms."""
    pidfd = os.pidfd_open(process.pid)
    try:
        return bool(select.select([pidfd], [], [], seconds)[0])
    finally:
        os.close(pidfd)


def end(process):
    """Asks first, so that srun and mpirun can end their ranks on other nodes."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(timeout=10)


def local_rows():
    yield Row(
        "this machine",
        "`mpirun -np 2 python` (Open MPI)",
        [*OPENMPI, sys.executable],
        is_bare=True,
        makes_a_world=False,
    )
    yield Row("this machine", "`mpirun -np 2 python` (MPICH)", [*MPICH, sys.executable], makes_a_world=False)
    yield Row("this machine", "`topout run -n 2`", [TOPOUT, "run", "-n", "2"])
    yield Row("this machine", "`topout run -n 2 --no-report`", [TOPOUT, "run", "-n", "2", "--no-report"])
    yield Row("this machine", "`mpirun -np 2 topout run` (Open MPI)", [*OPENMPI, TOPOUT, "run"])
    yield Row("this machine", "`mpirun -np 2 topout run` (MPICH)", [*MPICH, TOPOUT, "run"])
    yield Row("this machine", "`torchrun --nproc-per-node 2`", [TORCHRUN, "--nproc-per-node", "2"])
    yield Row("this machine", "`accelerate launch --num_processes 2`", lambda: accelerate_words("--num_machines 1"))


def accelerate_words(machines):
    """--multi_gpu is its way to several processes on a machine; without GPUs it starts them just the same."""
    known = f"--multi_gpu --num_processes 2 --main_process_port {next(ports)} --mixed_precision no --dynamo_backend no"
    return [ACCELERATE, "launch", *machines.split(), *known.split()]


def slurm_rows(slurm, environ):
    group, first = "Slurm, 2 nodes", slurm.nodes[0]
    srun = ["srun", "-N2", "-n2"]

    def torchrun():
        meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"n1:{next(ports)}", "--rdzv-id", "1"]
        return [*srun, TORCHRUN, "--nnodes", "2", "--nproc-per-node", "1", *meet]

    def accelerate():
        words = accelerate_words("--num_machines 2 --main_process_ip n1 --machine_rank $SLURM_PROCID")
        return [*srun, "sh", "-c", f'exec {" ".join(words)} "$@"', "sh"]

    commands = {
        "`srun python`": [*srun, sys.executable],
        "`srun topout run`": [*srun, TOPOUT, "run"],
        "`srun topout run --no-report`": [*srun, TOPOUT, "run", "--no-report"],
        "`topout run` once": [TOPOUT, "run"],
        "`topout run --no-report` once": [TOPOUT, "run", "--no-report"],
        "`srun torchrun` (c10d)": torchrun,
        "`srun accelerate launch`": accelerate,
    }
    for name, words in commands.items():
        is_bare = name == "`srun python`"
        yield Row(group, name, words, is_bare=is_bare, makes_a_world=not is_bare, at=first, env=environ)


def mpi_rows(nodes):
    for title, words in {
        "Open MPI": [*OPENMPI, "--host", "n1,n2"],
        "MPICH": [*MPICH, "-hosts", "n1,n2"],
    }.items():
        group = f"{title}, 2 nodes"
        bare = [*words, sys.executable]
        yield Row(group, "`mpirun python`", bare, is_bare=True, makes_a_world=False, at=nodes[0])
        yield Row(group, "`mpirun topout run`", [*words, TOPOUT, "run"], at=nodes[0])
        yield Row(group, "`mpirun topout run --no-report`", [*words, TOPOUT, "run", "--no-report"], at=nodes[0])


def variables_of_an_allocation(slurm):
    """Holds both nodes for good and returns what a job script on the first would find in its environment."""
    slurm.sbatch(HOLD, "-N2", "--ntasks=2", cwd=slurm.folder)
    path = slurm.folder / "env"
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, "the allocation did not start"
        time.sleep(0.1)
    return dict(word.split("=", 1) for word in path.read_text().rstrip("\0").split("\0"))


# ---- from rounds to figures


def ratio_with_bounds(values, bare, seed=0):
    """Median over rounds of value / the bare launcher's of that round, with a 95 % bootstrap interval."""
    ratios = [value / other for value, other in zip(values, bare, strict=True) if value and other]
    if not ratios:
        return "–"
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return f"{statistics.median(ratios):.2f} ({medians[50]:.2f} – {medians[1949]:.2f})"


def table(rows):
    bare = {row.group: row for row in rows if row.is_bare}
    lines = [
        "| where | command | first line s | / bare | returned s | / bare | rounds |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        done = [value for value in row.first_s if value is not None]
        start = f"| {row.group} | {row.name} |"
        if not done:
            lines.append(f"{start} failed | | failed | | 0 of {len(row.first_s)} |")
            continue
        cells = []
        for values, others in ((row.first_s, bare[row.group].first_s), (row.return_s, bare[row.group].return_s)):
            median_s = statistics.median(value for value in values if value is not None)
            cells += [f"{median_s:.3f}", "1" if row.is_bare else ratio_with_bounds(values, others)]
        lines.append(f"{start} {' | '.join(cells)} | {len(done)} of {len(row.first_s)} |")
    return "\n".join(lines)


def failures(rows):
    lines = [f"- {row.group}, {row.name}: {row.why}" for row in rows if row.why]
    return "\nFailed:\n" + "\n".join(lines) + "\n" if lines else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--machine", default=f"{os.cpu_count()}-cores", help="how the results name this machine")
    parser.add_argument("--only", default="", help="only commands whose group or name has this in it")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as name, Nodes() as nodes, Slurm(nodes, Path(name) / "slurm") as slurm:
        folder = Path(name)
        (folder / "hello.py").write_text(HELLO)
        os.environ.update({key: nodes.environment[key] for key in nodes.environment if key.startswith("OMPI_ALLOW")})
        rows = [*local_rows(), *slurm_rows(slurm, variables_of_an_allocation(slurm)), *mpi_rows(nodes)]
        rows = [row for row in rows if row.is_bare or options.only in f"{row.group} {row.name}"]
        order = random.Random(options.seed)
        standing = {node: node.processes() for node in nodes}
        for number in range(options.rounds + 1):
            for row in order.sample(rows, len(rows)):
                row.measure(folder)
                if row.first_s[-1] is None:  # what is left of it must not slow the others
                    for node, spared in standing.items():
                        node.kill_processes(spare=spared)
            if number == 0:  # the first round warms the files' cache
                for row in rows:
                    row.first_s, row.return_s, row.why = [], [], ""
            print(f"round {number} of {options.rounds}", file=sys.stderr, flush=True)
    text = REPORT.format(
        date=date.today(), machine=f"{options.machine}, {platform.machine()}, Python {platform.python_version()}",
        rounds=options.rounds, table=table(rows), failures=failures(rows),
    )  # fmt: skip
    print(text)
    if options.out:
        (options.out / f"{date.today()}-launch-{options.machine}.md").write_text(text)


REPORT = """# Starting a trivial script on two ranks
{date}; {machine}; {rounds} rounds, all commands of a round in random order;
made by `python -m benchmarks.launch`.

{table}

Seconds are medians over rounds; `/ bare` is the median over rounds of the ratio to the group's first command in the
same round, with a 95 % interval. *First line*: the script's first line has run on both ranks. *Returned*: the command
is back; plain `topout run` has by then analysed the run and written its report. The nodes are namespaces with one core
each and a link of 1 Gbit/s; commands start on the first of them, inside an allocation for Slurm.
{failures}"""

if __name__ == "__main__":
    main()
