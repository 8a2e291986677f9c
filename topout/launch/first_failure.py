"""Which rank failed first, and how to say it: pure functions over how the ranks ended.

When one rank goes, its peers fail a moment later with connection errors, and those are usually what a person sees.
Not for deciding when to stop a job; `supervise` does.
"""

from __future__ import annotations

from topout.schema.errors import ExitCode
from topout.schema.light_dataclass import dataclass
from topout.schema.light_signal import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_SIGNAL_LEAD_NS = 1_000_000_000
"""A killed process frees its memory before its parent hears of it, so its peers may complain up to so much earlier."""

_PEER_ERRORS = (
    r"connection (reset|closed|refused|aborted|was closed)|closed by peer|broken ?pipe|remote process exited"
    r"|ncclRemoteError|DistNetworkError|DistStoreError|socket ?(error|timeout)|timed out (waiting|after)"
    r"|failed to recv|heartbeat monitor|readError|writev|recvBytes|sendBytes"
)


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    """How one rank ended. Times are `time.monotonic_ns()` of its host."""

    rank: int
    host: str
    pid: int
    ended_at_ns: int
    exit_code: int | None = None
    """As the process left; None when a signal ended it."""
    signal: int | None = None
    signals_sent: frozenset[int] = frozenset()
    """What the launcher itself sent to this rank."""
    told_at_ns: int | None = None
    """When the launcher first told this rank to end; None: never."""
    reported_code: int | None = None
    """What the script left with, told before tearing down."""
    failure: str | None = None
    failed_at_ns: int | None = None

    @property
    def code(self) -> int:
        """What this rank counts with: its script's own code, whatever happened while tearing down."""
        if self.signal is None:
            return self.exit_code or 0
        if self.reported_code is not None:
            return self.reported_code
        if self.failure is not None:
            return 1
        return int(ExitCode.JOB_FAILED)

    @property
    def died_by_signal(self) -> bool:
        """Somebody else's signal, before the script had ended."""
        if self.signal is None or self.reported_code is not None or self.failure is not None:
            return False
        if self.told_at_ns is None:
            return True
        # once told to end, a rank may well abort while tearing down; only a kill that we did not send is news
        return self.signal == signal.SIGKILL and self.signal not in self.signals_sent

    @property
    def failed_by_itself(self) -> bool:
        if self.code == 0:
            return False
        if self.died_by_signal:
            return True
        return self.told_at_ns is None or self.at_ns < self.told_at_ns

    @property
    def at_ns(self) -> int:
        return self.ended_at_ns if self.failed_at_ns is None else self.failed_at_ns


def first_failure(ends: Iterable[RankEnd]) -> RankEnd | None:
    """The rank that failed by its own doing, earliest; one that only lost its peer comes after all others."""

    def order(end: RankEnd) -> tuple[bool, int]:
        return is_peer_error(end.failure), end.at_ns - _SIGNAL_LEAD_NS * end.died_by_signal

    return min((end for end in ends if end.failed_by_itself), key=order, default=None)


def is_peer_error(failure: str | None) -> bool:
    """Whether a traceback's message tells of a peer that went away."""
    if not failure:
        return False
    lines = failure.rstrip().splitlines()
    # the message starts at the last line that is not indented; frames above it may hold any word
    start = max((number for number, line in enumerate(lines) if line.startswith("Traceback ")), default=0)
    message = "\n".join(line for line in lines[start + 1 :] if not line.startswith((" ", "\t")))
    # here and compiled here: a launcher that starts need not wait for it
    import re

    return re.search(_PEER_ERRORS, message or failure, re.IGNORECASE) is not None


def signal_name(number: int) -> str:
    from signal import Signals

    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe(end: RankEnd, *, log: str | None, stderr_tail: str, num_oom_kills: int | None = None) -> str:
    """What is printed last and kept in first_failure.txt."""
    where = f"log {log}" if log else "its log could not be kept"
    who = f"Rank {end.rank} on {end.host}"
    if end.died_by_signal:
        return _describe_signal(end, who, where, stderr_tail, num_oom_kills)
    if end.failure is not None:
        return f"{who} failed first ({where}):\n{end.failure.rstrip()}{_hint(end.failure)}"
    last = _last_lines(stderr_tail)
    return f"{who} ended with exit code {end.code} ({where})." + (f" Its last words:\n{last}" if last else "")


def _hint(failure: str) -> str:
    """Without -n a single rank is started as python starts a script, and torch then asks for what torchrun sets."""
    is_for_ranks = any(
        f"environment variable {name} expected" in failure for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")
    )
    return (
        "\n\nThis script wants to be one of several ranks. Start it with -n: topout run -n 1 …" if is_for_ranks else ""
    )


def _describe_signal(end: RankEnd, who: str, where: str, stderr_tail: str, num_oom_kills: int | None) -> str:
    assert end.signal is not None
    why, do = _CAUSES.get(end.signal, _UNKNOWN)
    if end.signal == signal.SIGKILL and num_oom_kills is None:
        why = "it was killed from outside, perhaps for lack of memory, which this kernel does not tell"
    if end.signal == signal.SIGKILL and num_oom_kills:
        why = f"out of memory: the kernel killed {num_oom_kills} process{'es' * (num_oom_kills > 1)} during this run"
        do = "use a smaller batch, fewer loader workers or fewer ranks, or ask for more memory"
    last = _last_lines(stderr_tail)
    text = f"{who} (pid {end.pid}) died by {signal_name(end.signal)}.\n  why  {why}\n  do   {do}\n  see  {where}"
    return text + (f"\n  its last words:\n{last}" if last else "")


_UNKNOWN = ("somebody or something outside topout sent this signal", "ask the scheduler's log for this job and host")
_CAUSES: dict[int, tuple[str, str]] = {
    signal.SIGKILL: (
        "it was killed from outside; the control group's counters show no out-of-memory kill",
        "look for a time or memory limit of the scheduler, or who else sent it",
    ),
    signal.SIGTERM: ("somebody asked it to end, often a scheduler at its time limit", "look into the scheduler's log"),
    signal.SIGSEGV: (
        "native code touched memory it does not own",
        "set PYTHONFAULTHANDLER=1 and run again to see the Python line",
    ),
    signal.SIGABRT: ("native code gave up; its message stands in the log", "read the last lines of the log"),
    signal.SIGBUS: (
        "a memory-mapped file shrank or its file system is full; for loader workers often /dev/shm",
        "free space in /dev/shm, or use fewer workers",
    ),
    signal.SIGFPE: ("native code divided by zero", "set PYTHONFAULTHANDLER=1 and run again to see the Python line"),
    signal.SIGILL: (
        "a library was built for another processor than this one",
        "install builds of torch and its libraries for this machine",
    ),
}


def _last_lines(text: str, num_lines: int = 12) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines()[-num_lines:])
