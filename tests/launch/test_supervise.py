"""What the launcher does with what ranks tell it, and with ranks that do not end."""

import errno
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.launch.jobs import is_running, wait_for
from topout.launch.first_failure import RankEnd
from topout.launch.log_pipe import LogPipe
from topout.launch.outcome import Cause, Limits, Outcome
from topout.launch.rank_process import RankProcess
from topout.launch.signals import LauncherSignals
from topout.launch.supervise import Supervisor
from topout.schema.world import Rank

pytestmark = pytest.mark.alone

TELL = """
import json, os, signal, sys, time
def tell(**message):
    os.write(int(os.environ["TOPOUT_STATUS_FD"]), json.dumps(message).encode() + b"\\n")
def sleep():
    end = time.monotonic() + 60
    while time.monotonic() < end:
        time.sleep(1)
"""
LIMITS = Limits(exit_s=0.5, drain_s=0.2)


def rank(number: int, cores: tuple[int, ...] = ()) -> Rank:
    return Rank(rank=number, local_rank=number, node_rank=0, host="n1", cores=cores, num_threads=1)


def supervise(*scripts: str, notes: list[str] | None = None, fellows: object = None) -> Outcome:
    processes = [
        RankProcess(
            rank(number),
            [sys.executable, "-c", TELL + script],
            lambda fd: {**os.environ, "TOPOUT_STATUS_FD": str(fd)},
        )
        for number, script in enumerate(scripts)
    ]
    logs = [LogPipe(fd, None, on_failure=pytest.fail) for p in processes for fd in (p.out_fd, p.err_fd)]
    kept = notes if notes is not None else []
    with LauncherSignals() as signals:
        words = {"say": kept.append, "note": kept.append}
        outcome = Supervisor(processes, logs, signals, limits=LIMITS, fellows=fellows, **words).run()
    for process in processes:
        process.close()
    return outcome


def test_all_ranks_end_well():
    outcome = supervise("pass", "tell(kind='done', code=0)")
    assert outcome.cause is Cause.ALL_DONE
    assert [end.code for end in outcome.ends] == [0, 0]


def test_a_rank_that_does_not_end_after_its_last_line_is_ended_with_its_own_code():
    notes: list[str] = []
    outcome = supervise("tell(kind='done', code=0); time.sleep(60)", notes=notes)
    assert outcome.cause is Cause.ALL_DONE
    assert (outcome.ends[0].code, outcome.ends[0].signal) == (0, signal.SIGKILL)
    assert notes == ["rank 0: still there 0.5 s after its script's end, and ended"]


WRITES = """
def write():
    with open(os.devnull, "wb", buffering=0) as file:
        for _ in range(25):
            file.write(bytes(100_000))
            time.sleep(0.1)
tell(kind='done', code=0)
"""


@pytest.fixture
def unhurried(monkeypatch):
    """A busy machine may keep a rank from a core for half a second."""
    monkeypatch.setattr(sys.modules[__name__], "LIMITS", Limits(exit_s=1.5, writing_s=3.0, drain_s=0.2))


def test_a_rank_that_still_writes_after_its_last_line_ends_by_itself(unhurried):
    notes: list[str] = []
    outcome = supervise(WRITES + "write()", notes=notes)
    assert (outcome.ends[0].exit_code, outcome.ends[0].signal) == (0, None)
    assert set(notes) == {"rank 0: still wrote after its script's end, and was waited for"}


def test_once_it_writes_no_more_it_is_ended():
    notes: list[str] = []
    outcome = supervise(WRITES + "write(); sleep()", notes=notes)
    assert (outcome.ends[0].code, outcome.ends[0].signal) == (0, signal.SIGKILL)
    assert notes[-1] == "rank 0: still there 0.5 s after its script's end, and ended"


OUTLIVES = """
import subprocess
writes = "import time\\nwith open({path!r}, 'wb', buffering=0) as file:\\n print(flush=True)\\n"
writes += " for _ in range(50): file.write(bytes(100_000)); time.sleep(0.1)"
child = subprocess.Popen([sys.executable, "-c", writes], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.read(1)
tell(kind='done', code=0)
sleep()
"""


def test_a_program_that_outlives_its_rank_is_not_waited_for(unhurried, tmp_path):
    notes: list[str] = []
    supervise(OUTLIVES.format(path=str(tmp_path / "copied")), notes=notes)
    assert notes == ["rank 0: still there 1.5 s after its script's end, and ended"]


def test_a_rank_that_says_that_it_works_is_given_time(unhurried):
    outcome = supervise("tell(kind='done', code=0)\nfor _ in range(25): time.sleep(0.1); tell(kind='working')")
    assert (outcome.ends[0].exit_code, outcome.ends[0].signal) == (0, None)


def test_nobody_is_given_time_for_ever(unhurried):
    outcome = supervise("tell(kind='done', code=0)\nwhile True: time.sleep(0.1); tell(kind='working')")
    assert (outcome.ends[0].code, outcome.ends[0].signal) == (0, signal.SIGKILL)


def test_a_rank_that_failed_is_not_given_as_much(monkeypatch):
    monkeypatch.setattr("topout.record.process_tree.WRITING_AFTER_FAILURE_S", 1.0)
    works = "for _ in range(150): time.sleep(0.1); tell(kind='working')"
    outcome = supervise(f"tell(kind='failure', at_ns=5, text='ValueError: x')\n{works}")
    assert outcome.ends[0].signal == signal.SIGKILL


@pytest.mark.parametrize(("first", "second"), [("TERM", "TERM"), ("HUP", "HUP"), ("TERM", "HUP")])
def test_a_termination_that_arrives_twice_at_once_is_one_request(first, second, heeds_hangups):
    """The rank takes half a second to leave; asked twice with a while between, it would be killed at once."""
    outcome = supervise(f"""
def leave(number, frame):
    os.kill(os.getppid(), signal.SIG{second})
    time.sleep(0.5)
    sys.exit(3)
signal.signal(signal.SIGTERM, leave)
os.kill(os.getppid(), signal.SIG{first})
sleep()
""")
    assert (outcome.cause, outcome.signal) == (Cause.INTERRUPTED, getattr(signal, f"SIG{first}"))
    assert (outcome.ends[0].exit_code, outcome.ends[0].signal) == (3, None)


def fails_once(ready: Path) -> str:
    """A rank that waits for another one's file."""
    return f"while not os.path.exists({str(ready)!r}): time.sleep(0.02)\nsys.exit(3)"


def test_whoever_asks_while_a_failure_ends_the_job_does_not_want_it_again(tmp_path):
    asks = "signal.signal(15, lambda *_: os.kill(os.getppid(), signal.SIGINT)); "
    outcome = supervise(fails_once(tmp_path / "ready"), asks + f"open({str(tmp_path / 'ready')!r}, 'w'); sleep()")
    assert outcome.cause is Cause.RANK_FAILED
    assert outcome.is_unwanted
    assert not supervise("sys.exit(3)").is_unwanted


def test_ranks_that_die_of_a_signal_to_all_are_no_failure():
    to_all = "import subprocess; subprocess.run(['kill', '-TERM', str(os.getppid()), str(os.getpid())]); time.sleep(60)"
    outcome = supervise(to_all)
    assert (outcome.cause, outcome.signal) == (Cause.INTERRUPTED, signal.SIGTERM)


def test_an_abort_after_the_last_line_does_not_spoil_the_result():
    notes: list[str] = []
    outcome = supervise("tell(kind='done', code=0); os.kill(os.getpid(), signal.SIGABRT)", notes=notes)
    assert outcome.cause is Cause.ALL_DONE
    assert outcome.ends[0].code == 0
    assert notes == ["rank 0: died by signal 6 after its script had ended with 0"]


def test_a_rank_that_raised_and_then_hangs_is_ended():
    outcome = supervise("tell(kind='failure', at_ns=5, text='ValueError: x'); time.sleep(60)", "time.sleep(60)")
    assert outcome.cause is Cause.RANK_FAILED
    first, other = outcome.ends
    assert (first.code, first.failure, first.failed_at_ns) == (1, "ValueError: x", 5)
    assert other.signal == signal.SIGTERM


def test_a_rank_deaf_to_a_polite_signal_is_killed(tmp_path):
    deaf = "signal.signal(15, signal.SIG_IGN); "
    outcome = supervise(fails_once(tmp_path / "ready"), deaf + f"open({str(tmp_path / 'ready')!r}, 'w'); sleep()")
    assert [end.code for end in outcome.ends] == [3, 4]
    assert outcome.ends[1].signal == signal.SIGKILL
    assert not outcome.ends[1].failed_by_itself


def test_a_script_for_one_device_stops_a_job_of_two():
    script = "tell(kind='single-device', at_ns=1); time.sleep(60)"
    assert supervise(script, script).cause is Cause.SINGLE_DEVICE


def test_that_the_script_is_keras_is_kept():
    script = "tell(kind='single-device', at_ns=1, framework='keras'); time.sleep(60)"
    assert supervise(script, script).cause is Cause.SINGLE_DEVICE_KERAS


def test_a_script_for_one_device_may_run_once():
    assert supervise("tell(kind='single-device', at_ns=1)").cause is Cause.ALL_DONE


def test_notes_arrive_and_lines_that_mean_nothing_do_not_harm():
    notes: list[str] = []
    script = "os.write(int(os.environ['TOPOUT_STATUS_FD']), b'[1]\\n{broken\\n\\n'); tell(kind='note', text='no NVML')"
    outcome = supervise(script, notes=notes)
    assert outcome.cause is Cause.ALL_DONE
    assert notes == ["rank 0: no NVML"]


def test_a_failed_rank_does_not_leave_its_children_behind(tmp_path):
    script = f"""
import subprocess
child = subprocess.Popen(["sleep", "60"])
open({str(tmp_path / "child")!r}, "w").write(str(child.pid))
os._exit(5)
"""
    outcome = supervise(script)
    child = int((tmp_path / "child").read_text())
    assert outcome.ends[0].code == 5
    assert wait_for(lambda: not is_running(child))


def test_a_process_that_left_its_group_and_holds_the_output_does_not_hold_the_job(tmp_path):
    script = f"""
import subprocess
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
open({str(tmp_path / "child")!r}, "w").write(str(child.pid))
"""
    assert supervise(script).cause is Cause.ALL_DONE
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


@pytest.fixture
def held(monkeypatch):
    """Ranks of which the kernel does not let go."""
    monkeypatch.setattr(sys.modules[__name__], "LIMITS", Limits(exit_s=0.5, drain_s=0.2, kill_s=0.5, parting_s=0.5))
    reap, held = RankProcess.reap, []
    monkeypatch.setattr(RankProcess, "reap", lambda process: process.rank.rank not in held and reap(process))
    return held


@pytest.mark.timeout(60)
def test_a_rank_that_the_kernel_holds_after_its_last_line_holds_nobody_up(held):
    held.append(0)
    words: list[str] = []
    outcome = supervise("tell(kind='done', code=0); sleep()", notes=words)
    [end] = outcome.ends
    assert (outcome.cause, end.code, end.signal) == (Cause.ALL_DONE, 0, signal.SIGKILL)
    assert words[-1] == f"topout: rank 0 (pid {end.pid}) does not end; the kernel holds it."
    os.waitpid(end.pid, 0)


class Listening:
    """A launcher elsewhere that only hears of ends."""

    is_busy = False

    def __init__(self) -> None:
        self.ended: list[tuple[int, int | None]] = []

    def rank_ended(self, end: RankEnd) -> None:
        self.ended.append((end.rank, end.signal))

    def __getattr__(self, name: str):
        return lambda *_: ()


def test_who_leads_the_job_hears_of_a_rank_that_the_kernel_holds(held):
    held.append(1)
    fellows = Listening()
    outcome = supervise("sys.exit(3)", "sleep()", fellows=fellows)
    assert fellows.ended == [(0, None), (1, signal.SIGKILL)]
    os.waitpid(outcome.ends[1].pid, 0)


class StoppedProcess:
    """A rank in state T, as far as a look at it goes."""

    rank = rank(3)
    status_fd, pidfd, is_alive = -1, None, True
    passed_on: tuple[int, ...] = ()

    def state(self) -> str:
        return "T"

    def pass_on(self, number: int) -> None:
        self.passed_on += (number,)

    def tell(self, number: int) -> None:
        pytest.fail("it was to be left alone")


def test_ranks_that_pause_with_the_whole_job_do_not_count_as_stopped():
    process = StoppedProcess()
    with LauncherSignals() as signals:
        supervisor = Supervisor([process], [], signals, say=pytest.fail, note=pytest.fail, limits=Limits(stopped_s=3))
    supervisor.pause(True)
    for now in range(100):
        supervisor._look_for_stopped(now)
    supervisor.pause(False)
    for now in range(100, 103):
        supervisor._look_for_stopped(now)
    assert supervisor._cause is Cause.ALL_DONE
    supervisor._look_for_stopped(103)
    assert supervisor._cause is Cause.RANK_STOPPED
    assert process.passed_on == (signal.SIGSTOP, signal.SIGCONT)


def test_a_launcher_whose_job_is_paused_reports_nothing():
    """The one that leads is stopped then, and a connection that nobody reads breaks in the end."""
    reports: list[float] = []
    process = RankProcess(rank(0), [sys.executable, "-c", "import time; time.sleep(0.6)"], lambda fd: dict(os.environ))
    with LauncherSignals() as signals:
        supervisor = Supervisor([process], [], signals, say=pytest.fail, note=pytest.fail, watch=reports.append)
        supervisor._is_paused = True
        supervisor.run()
    process.close()
    assert reports == []


@pytest.mark.parametrize("num_pipes", [0, 1, 2, 3])
def test_a_rank_that_cannot_be_started_leaves_no_descriptor_behind(monkeypatch, num_pipes):
    """Descriptors run out at the first, second or third pipe, or at the fork."""
    pipe = os.pipe
    ends: list[int] = []

    def scarce_pipe():
        if len(ends) == 2 * num_pipes:
            raise OSError(errno.EMFILE, "Too many open files")
        ends.extend(pipe())
        return ends[-2], ends[-1]

    def no_fork(*words, **more):
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "pipe", scarce_pipe)
    monkeypatch.setattr("topout.launch.rank_process._exec", no_fork)
    with pytest.raises(OSError, match=r"open files|unavailable"):
        RankProcess(rank(0), ["true"], lambda fd: {})
    assert [end for end in ends if os.path.exists(f"/proc/self/fd/{end}")] == []


def test_a_rank_is_bound_before_its_first_line():
    core = min(os.sched_getaffinity(0))
    process = RankProcess(
        rank(0, cores=(core,)),
        [sys.executable, "-c", "import os; print(os.sched_getaffinity(0))"],
        lambda fd: dict(os.environ),
    )
    assert wait_for(process.reap)
    assert os.read(process.out_fd, 100).decode().strip() == f"{{{core}}}"
    process.close()
