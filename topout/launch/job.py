"""A job from spec to exit code: where it runs, its folder, its ranks, its end.

Not for explaining how fast it was; that is read from the run folder afterwards.
"""

import contextlib
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from topout.launch import oom_kills
from topout.launch.binding import bind
from topout.launch.first_failure import describe, first_failure, signal_name
from topout.launch.log_pipe import LogPipe
from topout.launch.rank_env import rank_environment
from topout.launch.rank_process import RankProcess
from topout.launch.run_record import RunRecord
from topout.launch.schedulers import local
from topout.launch.signals import LauncherSignals
from topout.launch.supervise import Cause, Limits, Outcome, Supervisor
from topout.launch.target import rank_command, with_target
from topout.launch.topology import cpu_limit
from topout.record.sampler import Sampler, Target
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.run_folder import RunFolder, create_run_folder
from topout.schema.spec import RunSpec
from topout.schema.world import Host, World

_MOST_RANKS_PER_CORE = 16
_FDS_PER_RANK = 7


@dataclass(frozen=True, kw_only=True)
class Terminal:
    """Where rank 0's output and the launcher's own talk go."""

    out_fd: int = 1
    err_fd: int = 2
    is_quiet: bool = False
    """Silences the launcher's own talk, never a warning and never the script."""

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self.err_fd, (text.rstrip("\n") + "\n").encode(errors="replace"))


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """How a job ended, and what is left of it."""

    exit_code: int
    status: str
    """`finished`, `failed` or `interrupted`."""
    folder: RunFolder | None
    """None when no place could be written."""
    last_words: str | None = None
    """The first failing rank's traceback, or why the job was ended; to be printed after everything else."""
    notes: tuple[str, ...] = ()


def run_job(spec: RunSpec, terminal: Terminal, command: list[str] | None = None) -> JobResult:
    """Runs the job to its end. `command` replaces what a rank executes (for tests)."""
    spec = with_target(spec)
    hosts = local.hosts()
    num_ranks = choose_num_ranks(spec, hosts[0])
    binding = bind(hosts[0], num_ranks, is_bound=spec.bind, cpu_limit=cpu_limit())
    with local.reserve_port() as port_holder, LauncherSignals() as signals:
        world = World(
            hosts=hosts,
            ranks=binding.ranks,
            master_address=local.MASTER_ADDRESS,
            master_port=port_holder.getsockname()[1],
        )
        record = RunRecord(None, spec, world, [Path(sys.argv[0]).name, *sys.argv[1:]])
        folder = _settle(spec, record, terminal.say)
        for text in binding.notes:
            record.note(text)
            if not terminal.is_quiet:
                terminal.say(f"topout: {text}")
        job = _Job(spec, world, folder, record, terminal)
        return job.run(command or rank_command(spec), signals)


def choose_num_ranks(spec: RunSpec, host: Host) -> int:
    """One rank a GPU, else one a NUMA domain, unless asked otherwise."""
    for name, value in (("-n", spec.num_ranks), ("--per-node", spec.per_node), ("--steps", spec.steps)):
        if value is not None and value < 1:
            raise TopoutError(f"{name} {value} is not possible.", why="it must be at least 1", do=f"try {name} 1")
    if spec.num_ranks is not None and spec.per_node is not None and spec.num_ranks != spec.per_node:
        raise TopoutError(
            f"-n {spec.num_ranks} and --per-node {spec.per_node} contradict each other.",
            why="this run has one host, so both mean the number of ranks",
            do="give one of the two",
        )
    asked = spec.num_ranks or spec.per_node
    most = max(256, _MOST_RANKS_PER_CORE * len(host.cores))
    if asked is not None and asked > most:
        raise TopoutError(
            f"{asked} ranks do not fit on {host.name}.",
            why=f"it has {len(host.cores)} cores; topout starts at most {most} ranks here",
            do=f"try -n {len(host.gpus) or len(host.cores)}",
        )
    return asked or len(host.gpus) or len(host.numa_domains) or 1


def _settle(spec: RunSpec, record: RunRecord, say: Callable[[str], None]) -> RunFolder | None:
    """A folder that can be written: the one asked for, else a temporary one, else none. Training goes on."""
    assert spec.script is not None
    name = spec.script.rpartition(".")[2] if spec.is_module else Path(spec.script).name
    for root in (Path(spec.runs).absolute(), Path(tempfile.gettempdir()) / "topout-runs"):
        folder = None
        try:
            folder = create_run_folder(root, name)
            record.move_to(folder, say)
            record.write()
            return folder
        except (TopoutError, OSError) as error:
            why = error.why if isinstance(error, TopoutError) else error.strerror or str(error)
            text = f"no run folder in {root}: {why}; training goes on"
            record.note(text)
            say(f"topout: {text}.")
            if folder is not None:
                shutil.rmtree(folder.path, ignore_errors=True)
    say("topout: nothing of this run is kept, since no folder could be written.")
    record.move_to(None, say)
    return None


class _Job:
    def __init__(
        self, spec: RunSpec, world: World, folder: RunFolder | None, record: RunRecord, terminal: Terminal
    ) -> None:
        self._spec = spec
        self._world = world
        self._folder = folder
        self._record = record
        self._terminal = terminal
        self._oom_kills_before = oom_kills.count_oom_kills()

    def run(self, command: list[str], signals: LauncherSignals) -> JobResult:
        processes = self._start(command)
        logs = self._open_logs(processes)
        self._record.started({process.rank.rank: process.pid for process in processes})
        sampler = self._start_sampler(processes)
        supervisor = Supervisor(
            processes,
            [log for pair in logs for log in pair],
            signals,
            say=self._terminal.say,
            note=self._record.note,
            tick=self._record.tick,
            limits=Limits.from_environment(os.environ),
        )
        try:
            outcome = supervisor.run()
        finally:
            for process in processes:
                process.tell(signal.SIGKILL)
            if sampler is not None:
                sampler.stop()
            for process, pair in zip(processes, logs, strict=True):
                process.close()
                for log in pair:
                    log.close()
        return self._conclude(outcome, {p.rank.rank: err.tail for p, (_, err) in zip(processes, logs, strict=True)})

    def _start(self, command: list[str]) -> list[RankProcess]:
        _allow_open_files(_FDS_PER_RANK * self._world.size + 64)
        run = self._folder.path if self._folder else None
        processes: list[RankProcess] = []
        for rank in self._world.ranks:
            environment = partial(rank_environment, rank, self._world, self._spec, run=run, inherited=os.environ)
            try:
                processes.append(RankProcess(rank, command, environment))
            except OSError as error:
                for process in processes:
                    process.tell(signal.SIGKILL)
                self._record.finished("failed", ExitCode.ENVIRONMENT, ())
                raise TopoutError(
                    f"Rank {rank.rank} of {self._world.size} could not be started.",
                    why=error.strerror or str(error),
                    do="start fewer ranks with -n, or raise the limits on processes and open files (ulimit -a)",
                    exit_code=ExitCode.ENVIRONMENT,
                ) from error
        return processes

    def _open_logs(self, processes: list[RankProcess]) -> list[tuple[LogPipe, LogPipe]]:
        def pipe(process: RankProcess, fd: int, stream: str, terminal_fd: int) -> LogPipe:
            number = process.rank.rank
            path = self._folder.log(number, stream) if self._folder else None
            shown = terminal_fd if number == 0 else None
            return LogPipe(fd, path, terminal_fd=shown, on_failure=self._record.warn_once)

        return [
            (pipe(p, p.out_fd, "out", self._terminal.out_fd), pipe(p, p.err_fd, "err", self._terminal.err_fd))
            for p in processes
        ]

    def _start_sampler(self, processes: list[RankProcess]) -> Sampler | None:
        if self._folder is None or not self._spec.record:
            return None
        folder = self._folder
        targets = [
            Target(rank=p.rank.rank, pid=p.pid, gpu=p.rank.gpu, path=folder.counters(p.rank.rank)) for p in processes
        ]
        sampler = Sampler(targets, note=self._record.note)
        sampler.start()
        return sampler

    def _conclude(self, outcome: Outcome, stderr_tails: dict[int, str]) -> JobResult:
        status, exit_code, words = self._judge(outcome, stderr_tails)
        if words is not None and self._folder is not None and status == "failed":
            try:
                self._folder.first_failure.write_text(words + "\n")
            except OSError as error:
                self._record.warn_once(error)
        self._record.finished(status, exit_code, outcome.ends)
        return JobResult(
            exit_code=exit_code,
            status=status,
            folder=self._folder,
            last_words=words,
            notes=tuple(self._record.content["notes"]),
        )

    def _judge(self, outcome: Outcome, stderr_tails: dict[int, str]) -> tuple[str, int, str | None]:
        """(status, exit code, what to print last)."""
        if outcome.cause is Cause.INTERRUPTED:
            number = outcome.signal or signal.SIGINT
            return (
                "interrupted",
                128 + number,
                f"topout: interrupted by {signal_name(number)}; all ranks ended.",
            )
        if outcome.cause is Cause.SINGLE_DEVICE:
            return "failed", ExitCode.USAGE, str(single_device_error(self._world.size))
        if outcome.cause is Cause.RANK_STOPPED:
            return "failed", ExitCode.JOB_FAILED, _stopped_words(outcome)
        first = first_failure(outcome.ends)
        if first is None:
            codes = [end.code for end in outcome.ends if end.code != 0]
            return ("failed", codes[0], None) if codes else ("finished", 0, None)
        log = str(self._folder.log(first.rank, "err")) if self._folder else None
        words = describe(
            first,
            log=log,
            stderr_tail=stderr_tails[first.rank],
            num_oom_kills=oom_kills.kills_since(self._oom_kills_before),
        )
        return "failed", first.code, words


def single_device_error(num_ranks: int) -> TopoutError:
    return TopoutError(
        f"{num_ranks} ranks were started, but the script trains on one device.",
        why=f"no process group by its first optimizer step: {num_ranks} copies would train independently of each other",
        do="run one with -n 1, or make the script distributed (torch's init_process_group and DistributedDataParallel)",
    )


def _stopped_words(outcome: Outcome) -> str:
    end = next(end for end in outcome.ends if end.rank == outcome.stopped_rank)
    return str(
        TopoutError(
            f"Rank {end.rank} on {end.host} (pid {end.pid}) was stopped and nobody continued it.",
            why="a process in state T (SIGSTOP, or a debugger that left it) holds all others at the next collective",
            do="find who stopped it, such as a scheduler that suspends jobs; TOPOUT_STOPPED_LIMIT_S=600 waits longer",
        )
    )


def _allow_open_files(num_needed: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < num_needed:
        with contextlib.suppress(ValueError, OSError):
            wanted = num_needed if hard == resource.RLIM_INFINITY else min(num_needed, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
