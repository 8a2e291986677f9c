"""A launcher that follows: joins its job's head, starts the ranks it is told to, and reports how they end.

Started on each host through the scheduler (`agent_process`), or as one of the tasks that a scheduler
started itself. It lives over restarts, and ends its ranks at once when the head is gone. Prints nothing of its own.
"""

from __future__ import annotations

import _socket
import os
import sys
import time

from topout.host.light_selector import Selector
from topout.host.topology import read_host
from topout.launch.becoming import BEFORE_RANKS, Ahead, BecomeRank, run_rank
from topout.launch.following import FollowingFellows
from topout.launch.meeting_point import MeetingPoint, reach
from topout.launch.member import Member
from topout.launch.outcome import Cause, after_signal
from topout.launch.plain_values import from_outline, from_plain, to_plain
from topout.launch.ports import free_ports
from topout.launch.rendezvous import HEAD_VARIABLE, INTERFACE_VARIABLE, TOKEN_VARIABLE, at_data_address, connect
from topout.launch.signals import EndedByError, LauncherSignals
from topout.launch.target import rank_command, rank_words
from topout.launch.variables import PLACE_VARIABLE, short_name
from topout.launch.wire import Wire
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.ignoring import ignoring
from topout.schema.light_dataclass import replace
from topout.schema.run_folder import RUN_JSON, RunFolder, is_led_by
from topout.schema.spec import RunSpec
from topout.schema.world import Host, Rank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, NoReturn


_LONGEST_WRITE_S = 600.0
"""Of what ranks printed, after their end."""


class Agent:
    """Does what the head says, one round after the other."""

    def __init__(self, wire: Wire, member: Member, token: str, own: RunSpec | None = None) -> None:
        self._wire = wire
        self._member = member
        self._token = token
        self._own = own
        """Of a task: what it was itself told to run."""
        self._messages: list[dict[str, Any]] = []
        self._selector = Selector()
        self._meeting_point: MeetingPoint | None = None
        self._ahead = Ahead(*BEFORE_RANKS)

    def serve(self, gathering: LauncherSignals | None = None) -> int:
        """Returns the exit code of the job. `gathering` are signals, with those that came before."""
        self._wire.send("hello", member=to_plain(self._member))
        if gathering is not None:
            return self._obey(gathering)
        with LauncherSignals() as signals:
            return self._obey(signals)

    def _obey(self, signals: LauncherSignals) -> int:
        self._selector.register(self._wire.fd, lambda: None)
        self._selector.register(signals.fd, lambda: None)
        while True:
            try:
                message = self._next(signals)
            except EndedByError as error:
                # the head may be asking, or have sent the start already
                orders = list(after_signal(error.number))
                self._wire.send("ending", cause=Cause.INTERRUPTED, orders=orders, number=error.number, rank=None)
                return 128 + error.number
            if message is None:
                return int(ExitCode.JOB_FAILED)
            kind = message.get("kind")
            if kind == "prepare":
                self._prepare(message)
            elif kind == "reach":
                why = reach(str(message["address"]), int(message["port"]), self._token)
                self._wire.send("reached", why=why)
            elif kind == "start":
                if self._meeting_point is not None:
                    self._meeting_point.stop_answering()
                self._run(message, signals)
            elif kind == "bye":
                return int(message.get("exit_code", 0))

    def _next(self, signals: LauncherSignals) -> dict[str, Any] | None:
        """None when the head is gone."""
        has_more = True
        while not self._messages:
            if not self._wire.is_open:
                return None
            # while the head thinks, what its next word needs is loaded
            ready = self._selector.select(0.0 if has_more else 1.0)
            for act in ready:
                act()
            if not ready:
                has_more = self._ahead.load_one()
            signals.raise_if_asked()
            self._wire.flush()
            self._messages += self._wire.receive()
        return self._messages.pop(0)

    def _prepare(self, message: dict[str, Any]) -> None:
        address = self._member.host.address
        why = self._enter(str(message["cwd"]))
        self._release()
        if message["is_master"]:
            self._meeting_point = MeetingPoint(address, self._token)
            self._meeting_point.register(self._selector)
        self._wire.send(
            "prepared",
            ports=free_ports(address, int(message["num_ranks"])),
            address=address,
            master_port=self._meeting_point.port if self._meeting_point else None,
            why=why,
        )

    def _enter(self, folder: str) -> str | None:
        """Where the job was started: the scheduler may start a launcher somewhere else. Says why it cannot."""
        if self._member.is_task:
            # which has its script from where it is
            return None
        try:
            os.chdir(folder)
        except OSError as error:
            return error.strerror or str(error)
        return None

    def _words_of(self, spec: RunSpec) -> RunSpec:
        """Each task runs what it was given, as it would without topout: `srun bash -c 'topout run train.py $RANK'`."""
        if self._own is None:
            return spec
        if self._own.script != spec.script:
            self._wire.send("note", text=f"task {self._member.number} runs {self._own.script}, not {spec.script}")
        return replace(spec, script=self._own.script, args=self._own.args, is_module=self._own.is_module)

    def _release(self) -> None:
        if self._meeting_point is not None:
            self._meeting_point.close()
            self._meeting_point = None

    def _run(self, message: dict[str, Any], signals: LauncherSignals) -> None:
        # loaded while this one awaited the head's word
        from topout.launch.local_ranks import LocalRanks

        ranks = [from_plain(Rank, rank) for rank in message["ranks"]]
        world = from_outline(message["world"], self._member.host, ranks)
        spec = self._words_of(from_plain(RunSpec, message["spec"]))
        fellows = FollowingFellows(self._wire)
        try:
            folder = self._folder(message["run"], message["launcher"])
            local = LocalRanks(
                ranks,
                world,
                spec,
                rank_words(spec) if message["forks"] else rank_command(spec),
                folder=folder,
                restart=int(message["restart"]),
                scheduler=message["scheduler"],
                show=fellows.show,
                note=fellows.note,
                on_failure=lambda error: fellows.note(f"the run folder cannot be written: {error.strerror or error}"),
                signals=signals,
                forks=bool(message["forks"]),
            )
        except (OSError, TopoutError) as error:
            for rank in ranks:
                fellows.could_not_start(rank.rank, self._member.host.name, str(error))
            self._wire.send("finished")
            return
        # what came together with the start is for these ranks
        fellows.early, self._messages = self._messages, []
        try:
            self._wire.send("started", pids=local.pids)
            fellows.local = local
            local.supervise(
                signals, say=fellows.say, tick=lambda: None, watch=fellows.report, stopping=None, fellows=fellows
            )
            has_told = local.stop_page.has_told
        finally:
            self._messages += fellows.unread
            local.close(self._patience(fellows))
            self._release()
        self._wire.send("finished", has_told=has_told)

    def _patience(self, fellows: FollowingFellows) -> Callable[[], bool]:
        """With a file system that may take longer than the head waits for a launcher that says nothing."""
        until = time.monotonic() + _LONGEST_WRITE_S

        def goes_on() -> bool:
            self._wire.send("beat")
            self._messages += self._wire.receive()
            is_hurried = fellows.is_hurried or any(message.get("kind") == "hurry" for message in self._messages)
            return self._wire.is_open and not is_hurried and time.monotonic() < until

        return goes_on

    def _folder(self, run: str | None, launcher: dict[str, Any]) -> RunFolder | None:
        """That of the run this launcher leads; a folder of the same name may be another run's."""
        if run is None:
            return None
        folder = RunFolder(run)
        if is_led_by(folder, launcher):
            return folder
        import zlib

        from topout.launch.temporary_runs import make_private, temporary_runs

        # no shared file system: keep this host's files here, and say where
        has_other = os.path.exists(folder.inside(RUN_JSON))  # noqa: PTH110
        found = "is another run's folder there" if has_other else "is not there"
        root = temporary_runs()
        # the same for all launchers of the job on this host
        mark = zlib.crc32(repr((run, launcher)).encode())
        own = RunFolder(f"{root}/{folder.path.name}-{mark:08x}")
        try:
            make_private(root)
            os.makedirs(own.inside("logs"), exist_ok=True)  # noqa: PTH103
        except OSError as error:
            why = f"{error.filename}: {error.strerror}"
            self._wire.send("note", text=f"{run} {found}, and nothing is kept of its ranks: {why}")
            return None
        host = self._member.host.name
        self._wire.send("note", text=f"{run} {found}; the files of its ranks are in {host}:{own.text}")
        return own


def join(
    wire: Wire,
    host: Host,
    token: str,
    *,
    number: int,
    is_task: bool,
    interface: str | None,
    signals: LauncherSignals | None = None,
    own: RunSpec | None = None,
) -> int:
    """Takes part in the job until its end. `own` is what a task was told to run."""
    host = replace(host, address=wire.own_address)
    if wire.own_address != wire.peer_address or not wire.own_address.startswith("127."):
        host = at_data_address(host, wire.peer_address, interface)
    granted = tuple(sorted(os.sched_getaffinity(0)))
    return Agent(wire, Member(number=number, host=host, granted=granted, is_task=is_task), token, own).serve(signals)


def main(environ: Mapping[str, str] = os.environ) -> int:
    """As the head had it started: where the head is stands in the environment."""
    from topout.launch.detect import detect_allocation

    addresses, _, port = environ[HEAD_VARIABLE].rpartition(":")
    token = environ[TOKEN_VARIABLE]
    meanwhile = Ahead(*BEFORE_RANKS).load_one
    wire = connect(addresses.split(","), [int(port)], token, timeout_s=25, meanwhile=meanwhile)
    allocation = detect_allocation(environ)
    task = allocation.task if allocation else None
    number = _place(allocation.hosts if allocation else (), task.node_rank if task else None)
    interface = environ.get(INTERFACE_VARIABLE)
    for name in (HEAD_VARIABLE, TOKEN_VARIABLE, INTERFACE_VARIABLE, PLACE_VARIABLE):
        os.environ.pop(name, None)
    return join(wire, read_host(), token, number=number, is_task=False, interface=interface)


def _place(hosts: Sequence[str], node_rank: int | None) -> int:
    """This host's place among the job's: as the scheduler counts, else by name."""
    if node_rank is not None:
        return node_rank
    with ignoring(ValueError):
        return [short_name(host) for host in hosts].index(short_name(_socket.gethostname()))
    return 0


def _main() -> int:
    words: list[str] = []
    kept_fds: frozenset[int] = frozenset()
    try:
        return main()
    except TopoutError as error:
        print(error, file=sys.stderr)  # noqa: T201 (the head shows it when nobody arrives)
        return int(error.exit_code)
    except BecomeRank as rank:
        words, kept_fds = rank.words, rank.kept_fds
    return run_rank(words, kept_fds)


def run_process() -> NoReturn:
    """Of the process that `starters` has the scheduler start on each host."""
    sys.exit(_main())
