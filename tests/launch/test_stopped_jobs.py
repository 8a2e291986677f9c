"""What a launcher enforces by the clock in a job that was stopped meanwhile, by its head or with all its processes."""

import signal
import time
from types import SimpleNamespace

import pytest

from topout.launch.outcome import AFTER_TERMINATE, AT_ONCE, Cause
from topout.launch.signals import LauncherSignals
from topout.launch.supervise import Supervisor
from topout.schema.world import Rank


class Lingering:
    """A rank that does not end, whatever it is told."""

    rank = Rank(rank=3, local_rank=3, node_rank=0, host="n1", cores=(), num_threads=1)
    status_fd, pidfd, is_alive = -1, None, True

    def __init__(self) -> None:
        self.told: list[int] = []
        self.passed_on: list[int] = []

    def tell(self, number: int) -> None:
        self.told.append(number)

    def pass_on(self, number: int) -> None:
        self.passed_on.append(number)

    def reap(self) -> bool:
        return False

    def written_bytes(self) -> int:
        return 0


class Job:
    """One rank and its supervisor, at a time that the test sets."""

    def __init__(self, clock: SimpleNamespace) -> None:
        self.rank = Lingering()
        self._clock = clock
        with LauncherSignals() as signals:
            self.supervisor = Supervisor([self.rank], [], signals, say=pytest.fail, note=lambda text: None)

    def wait(self, seconds: float, *, asked_s: float | None = None) -> None:
        """As the supervisor's loop does, with a select that takes longer than was `asked_s` for."""

        def select(timeout: float) -> list[object]:
            self._clock.now += seconds
            return []

        self.supervisor._selector = SimpleNamespace(select=select)
        self.supervisor._wait(seconds if asked_s is None else asked_s)
        self.supervisor._enforce(self._clock.now)


@pytest.fixture
def job(monkeypatch) -> Job:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return Job(clock)


@pytest.mark.parametrize("is_paused", [True, False], ids=["paused", "its launcher stopped too"])
@pytest.mark.parametrize("before", [[], [signal.SIGTERM]], ids=["after its last line", "told to end"])
def test_time_in_which_a_job_is_stopped_counts_against_no_rank(job, is_paused, before):
    if before:
        job.supervisor.end_job(Cause.INTERRUPTED, AFTER_TERMINATE)
    else:
        job.supervisor._act_on(3, {"kind": "done", "code": 0})
    job.wait(0)
    if is_paused:
        job.supervisor.pause(True)
    job.wait(60, asked_s=1)
    assert job.supervisor._seconds_to_wait() > 0
    if is_paused:
        job.supervisor.pause(False)
    for _ in range(3):
        job.wait(1)
    assert job.rank.told == before
    job.wait(1)
    job.wait(1)
    assert job.rank.told == [*before, signal.SIGKILL]


def test_a_launcher_that_has_much_to_do_still_enforces(job):
    """Time that it spends on its own work is no time in which ranks stood still."""
    job.supervisor.end_job(Cause.INTERRUPTED, AFTER_TERMINATE)
    job.wait(0)
    for _ in range(2):
        job._clock.now += 3
        job.wait(0)
    assert job.rank.told == [signal.SIGTERM, signal.SIGKILL]


def test_a_paused_job_that_must_end_goes_on_to_its_end(job):
    """Whoever paused it may be gone, also while its ranks were ending already."""
    job.supervisor.end_job(Cause.INTERRUPTED, AFTER_TERMINATE)
    job.wait(0)
    job.supervisor.pause(True)
    job.supervisor.end_job(Cause.HOST_LOST, AT_ONCE)
    for _ in range(5):
        job.wait(1)
    assert job.rank.told == [signal.SIGTERM, signal.SIGKILL]
    assert job.rank.passed_on == [signal.SIGSTOP, signal.SIGCONT]


def test_who_asks_twice_wants_a_paused_job_ended(job):
    job.supervisor.pause(True)
    job.supervisor.hurry()
    job.wait(1)
    assert job.rank.told == [signal.SIGKILL]
