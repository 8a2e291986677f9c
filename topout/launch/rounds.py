"""The rounds of a job in the launcher that leads: a run folder, its ranks, their end, another try when one is left.

Not for finding out who takes part: a `Company` arrives complete. Launchers that follow need none of this; see `agent`.
"""

# paths are texts here: ranks that start do not wait for `pathlib`
# ruff: noqa: PTH100, PTH119

from __future__ import annotations

import os
import select
import sys

from topout.launch import oom_kills
from topout.launch.bounds import check_min_nodes
from topout.launch.company import Company
from topout.launch.detect import check_world
from topout.launch.job_result import JobResult
from topout.launch.local_ranks import QUIET_S, LocalRanks
from topout.launch.outcome import MAY_BE_RESTARTED, TRAIN_ALONE, Cause, Limits, Outcome
from topout.launch.roster import Roster, make_roster
from topout.launch.run_record import RunRecord
from topout.launch.signals import LauncherSignals
from topout.launch.target import rank_command, rank_words
from topout.launch.terminal import Terminal
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.light_dataclass import replace
from topout.schema.light_signal import signal
from topout.schema.run_folder import RunFolder, create_run_folder
from topout.schema.spec import RunSpec
from topout.schema.world import World

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from topout.host.wiring import Wiring
    from topout.launch.head import Head
    from topout.launch.stopping import Stopping
    from topout.launch.watching import Watching


class Rounds:
    """All starts of the ranks that this job gets."""

    def __init__(self, spec: RunSpec, crew: Company, terminal: Terminal, forks: bool) -> None:
        self._spec = spec
        self._crew = crew
        self._terminal = terminal
        self._forks = forks
        self._settled: dict[int, int] = {}

    def run(self, signals: LauncherSignals) -> JobResult:
        restart = 0
        while True:
            try:
                one = _Round(self._spec, self._crew, self._terminal, restart, forks=self._forks, settled=self._settled)
                result, outcome = one.run(signals)
            finally:
                self._crew.end_round()
            why_not = self._why_no_restart(outcome, restart)
            if why_not is not None:
                if why_not and restart < self._spec.restarts:
                    self._terminal.say(f"topout: not started again: {why_not}")
                return result
            if signals.end_asked() is not None:
                return result
            if outcome.warning is not None:
                # the end that was announced comes whatever ranks do
                signals.give_back([outcome.warning])
            restart += 1
            if result.last_words:
                self._terminal.say(f"\n{result.last_words}")
            self._terminal.say(f"topout: restart {restart} of {self._spec.restarts} on {self._hosts_left()}")

    def _why_no_restart(self, outcome: Outcome, restart: int) -> str | None:
        """None: start again. Empty: there is no reason to."""
        if outcome.cause not in MAY_BE_RESTARTED or outcome.is_unwanted or restart >= self._spec.restarts:
            return ""
        if not outcome.lost_hosts:
            return None
        num_left = len({member.host.name for member in self._crew.members()})
        fewest = self._spec.min_nodes
        if fewest is None:
            return f"{', '.join(outcome.lost_hosts)} is gone; --min-nodes {num_left} would go on without it"
        if num_left < fewest:
            return f"{num_left} hosts are left, --min-nodes asks for {fewest}"
        return None

    def _hosts_left(self) -> str:
        names = list(dict.fromkeys(member.host.name for member in self._crew.members()))
        return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


class _Round:
    """One start of the ranks, with a run folder of its own."""

    def __init__(
        self,
        spec: RunSpec,
        crew: Company,
        terminal: Terminal,
        restart: int,
        *,
        forks: bool,
        settled: dict[int, int],
    ) -> None:
        self._spec = spec
        self._crew = crew
        self._terminal = terminal
        self._restart = restart
        self._forks = forks
        self._settled = settled
        """How many ranks each launcher has; found by the first start, for all that follow."""
        self._oom_kills_before = oom_kills.count_oom_kills()

    def run(self, signals: LauncherSignals) -> tuple[JobResult, Outcome]:
        roster = make_roster(self._spec, self._crew.members(), self._crew.allocation, self._settled)
        if self._restart == 0:
            self._settled.update({number: len(ranks) for number, ranks in roster.ranks_of.items()})
            # later, --min-nodes has allowed for fewer
            check_world(self._crew.allocation, roster.world.size)
            check_min_nodes(self._spec, len(roster.world.hosts))
        world = self._crew.prepare(roster, signals)
        record = RunRecord(
            None, self._spec, world, [os.path.basename(sys.argv[0]), *sys.argv[1:]], restart=self._restart
        )
        folder = _settle(self._spec, record, self._terminal.say)
        self._announce(roster, world, record)
        head = self._crew.head
        if head is not None:
            head.show = self._terminal.show
            head.started = record.started
            head.start(
                roster,
                world,
                self._spec,
                run=folder.text if folder else None,
                restart=self._restart,
                scheduler=self._scheduler(roster),
                forks=self._forks,
            )
        try:
            local = self._start_own(roster, world, folder, record, signals)
        except TopoutError:
            record.finished("failed", ExitCode.ENVIRONMENT, ())
            raise
        if head is not None and not local.processes:
            _await_word(head, signals)
        stopping = self._stopping(local)
        try:
            record.started(local.pids)
            outcome = local.supervise(
                signals,
                say=self._terminal.say,
                tick=lambda: record.tick(local.scribe),
                watch=self._late_watch(local, folder, record),
                stopping=stopping,
                fellows=head,
                begun=self._terminal.scribe.start,
            )
            record.look_around(self._spec)
            is_stopped = local.stop_page.has_told or (head is not None and head.has_told)
        finally:
            local.close()
            self._terminal.scribe.finish()
        if is_stopped and outcome.cause is Cause.ALL_DONE:
            record.note("the script stopped because the scheduler had announced the end")
        lost_hosts = tuple(head.lost_hosts) if head is not None else ()
        outcome = replace(outcome, lost_hosts=lost_hosts, is_stopped=is_stopped, warning=stopping.warning)
        return self._conclude(outcome, world, folder, record, local.stderr_tails), outcome

    def _late_watch(self, local: LocalRanks, folder: RunFolder | None, record: RunRecord) -> Callable[[float], None]:
        """What is not needed before the ranks run, made at the first look."""
        watching: Watching | None = None

        def look(now: float) -> None:
            nonlocal watching
            if local.is_ending:
                # whoever is continued or killed gets on, which is no news
                return
            if watching is None:
                watching = self._watching(local, folder)
                record.look_around(self._spec)
            watching.look(now)

        return look

    def _watching(self, local: LocalRanks, folder: RunFolder | None) -> Watching:
        from topout.launch.watchdog import Watchdog
        from topout.launch.watching import Watching

        head = self._crew.head
        watching = Watching(
            local,
            Watchdog(
                named_after_s=Limits.from_environment(os.environ).hang_named_s,
                stacks=os.path.relpath(folder.inside("hang")) if folder is not None and self._spec.record else None,
            ),
            say=self._terminal.say,
            ask_elsewhere=head.ask_stacks if head is not None else lambda ranks: None,
        )
        if head is not None:
            head.watching = watching
        return watching

    def _stopping(self, local: LocalRanks) -> Stopping:
        # ranks that start need not wait for it
        from topout.launch.stopping import Stopping

        head = self._crew.head
        if head is None:
            return Stopping(local.stop_page, own=0, others=(), send=lambda order: None, say=self._terminal.say)
        head.stopping = Stopping(
            local.stop_page,
            own=head.local.number if head.local is not None else None,
            others=[number for number, link in head.links.items() if not link.has_finished],
            send=head.order_stop,
            say=self._terminal.say,
        )
        return head.stopping

    def _start_own(
        self, roster: Roster, world: World, folder: RunFolder | None, record: RunRecord, signals: LauncherSignals
    ) -> LocalRanks:
        """The ranks of this launcher; a head that a scheduler did not count as a task has none."""
        numbers = {rank.rank for rank in roster.ranks_of[self._crew.local.number]} if self._crew.local else set()
        return LocalRanks(
            [rank for rank in world.ranks if rank.rank in numbers],
            world,
            self._spec,
            rank_words(self._spec) if self._forks else rank_command(self._spec),
            folder=folder,
            restart=self._restart,
            scheduler=self._scheduler(roster),
            show=self._terminal.show,
            note=record.note,
            on_failure=record.warn_once,
            signals=signals,
            forks=self._forks,
        )

    def _scheduler(self, roster: Roster) -> str | None:
        """Whose variables count something else than ranks: launchers, or tasks of which some are gone."""
        allocation = self._crew.allocation
        is_smaller = allocation is not None and len(roster.ranks_of) < len(self._settled)
        return allocation.scheduler if allocation is not None and is_smaller else self._crew.scheduler

    def _announce(self, roster: Roster, world: World, record: RunRecord) -> None:
        for text in roster.notes:
            record.note(text)
            if not self._terminal.is_quiet:
                self._terminal.say(f"topout: {text}")
        if self._spec.bind_report:
            from topout.host.bindings_report import bindings_report

            self._terminal.say(bindings_report(world, wiring=self._own_wiring(roster, world)))

    def _own_wiring(self, roster: Roster, world: World) -> Wiring | None:
        """None for a head on a login host, which has no ranks."""
        if self._crew.local is None:
            return None
        from topout.host.wiring import read_wiring

        own = roster.ranks_of.get(self._crew.local.number)
        if not own:
            return None
        node_rank = own[0].node_rank
        ranks = [rank for rank in world.ranks if rank.node_rank == node_rank]
        return read_wiring(world.hosts[node_rank], ranks, is_only_host=len(world.hosts) == 1)

    def _conclude(
        self, outcome: Outcome, world: World, folder: RunFolder | None, record: RunRecord, tails: dict[int, str]
    ) -> JobResult:
        status, exit_code, words = self._judge(outcome, world, folder, tails)
        if words is not None and folder is not None and status == "failed":
            try:
                folder.first_failure.write_text(words + "\n", encoding="utf-8", errors="backslashreplace")
            except OSError as error:
                record.warn_once(error)
        record.finished(status, exit_code, outcome.ends)
        return JobResult(
            exit_code=exit_code,
            status=status,
            folder=folder,
            last_words=words,
            notes=tuple(record.content["notes"]),
            is_refused=outcome.cause in TRAIN_ALONE,
        )

    def _judge(
        self, outcome: Outcome, world: World, folder: RunFolder | None, tails: dict[int, str]
    ) -> tuple[str, int, str | None]:
        """(status, exit code, what to print last)."""
        # ranks that start need not wait for it
        from topout.launch.first_failure import describe, first_failure, signal_name
        from topout.launch.stopping import STOPPED_EXIT_CODE

        if outcome.cause is Cause.INTERRUPTED:
            number = outcome.signal or signal.SIGINT
            return "interrupted", 128 + number, f"topout: interrupted by {signal_name(number)}; all ranks ended."
        if outcome.cause in TRAIN_ALONE:
            return "failed", ExitCode.USAGE, str(single_device_error(outcome.cause, world.size, is_ddp=self._spec.ddp))
        if outcome.cause is Cause.RANK_STOPPED:
            return "failed", ExitCode.JOB_FAILED, _stopped_words(outcome)
        first = first_failure(outcome.ends)
        if first is None:
            codes = [end.code for end in outcome.ends if end.code != 0]
            if codes:
                return "failed", codes[0], None
            return "finished", STOPPED_EXIT_CODE if outcome.is_stopped else 0, None
        words = describe(
            first,
            log=str(folder.log(first.rank, "err")) if folder else None,
            stderr_tail=tails.get(first.rank) or self._told(first.rank),
            num_oom_kills=self._num_oom_kills(first.rank, is_here=first.rank in tails),
        )
        return "failed", first.code, words

    def _told(self, rank: int) -> str:
        return self._crew.head.tails.get(rank, "") if self._crew.head is not None else ""

    def _num_oom_kills(self, rank: int, *, is_here: bool) -> int | None:
        if is_here or self._crew.head is None:
            return oom_kills.kills_since(self._oom_kills_before)
        return self._crew.head.oom_kills.get(rank)


def _await_word(head: Head, signals: LauncherSignals) -> None:
    """Until a launcher says something: one may share a core with this one, which has no ranks of its own."""
    poll = select.poll()
    poll.register(signals.fd, select.POLLIN)
    for link in head.links.values():
        if link.wire.is_open:
            poll.register(link.wire.fd, select.POLLIN)
    poll.poll(QUIET_S * 1000)


def single_device_error(cause: Cause, num_ranks: int, *, is_ddp: bool) -> TopoutError:
    if cause is Cause.SINGLE_DEVICE_KERAS:
        # --ddp knows scripts of torch alone
        do = "run one with -n 1, or join the ranks: MultiWorkerMirroredStrategy, with tf_keras (docs/frameworks.md)"
    else:
        do = (
            f"{'' if is_ddp else 'add --ddp to make it data-parallel as it is, '}run one with -n 1, or make the script "
            "distributed (topout.init() and wrap, or DistributedDataParallel)"
        )
    return TopoutError(
        f"{num_ranks} ranks were started, but the script trains on one device.",
        why=f"nothing joins the ranks by the first step: {num_ranks} copies would train independently of each other",
        do=do,
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


def _settle(spec: RunSpec, record: RunRecord, say: Callable[[str], None]) -> RunFolder | None:
    """A folder that can be written: the one asked for, else a temporary one, else none. Training goes on."""
    assert spec.script is not None
    name = spec.script.rpartition(".")[2] if spec.is_module else os.path.basename(spec.script)
    for root, make in _places(spec):
        folder = None
        try:
            make(root)
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
                import shutil

                shutil.rmtree(folder.path, ignore_errors=True)
    say("topout: nothing of this run is kept, since no folder could be written.")
    record.move_to(None, say)
    return None


def _places(spec: RunSpec) -> Iterator[tuple[str, Callable[[str], None]]]:
    """Each with what has to be done before folders are made in it."""
    yield os.path.abspath(spec.runs), lambda root: None
    # seldom needed
    from topout.launch.temporary_runs import make_private, temporary_runs

    yield temporary_runs(), make_private
