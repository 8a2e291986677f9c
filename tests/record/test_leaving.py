"""A rank ends within seconds of its script's last line, but not before what the script still writes is written."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from topout.record import leaving
from topout.record.leaving import Doings, Effort, Leaving, Patience
from topout.record.process_tree import WORTH_WAITING_BYTES, Writing
from topout.record.recorder import Recorder
from topout.record.settings import Settings
from topout.record.status import StatusLine

SAVES_SLOWLY = """
import atexit, multiprocessing, os, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
def save():
    with open("saved", "wb", buffering=0) as file:
        for _ in range(12):
            file.write(bytes(100_000))
            time.sleep(0.5)

"""


LATE = """
class Late:
    def __del__(self, os=os, sleep=time.sleep):
        file = os.open("saved", os.O_CREAT | os.O_WRONLY)
        for _ in range(12):
            os.write(file, bytes(100_000))
            sleep(0.5)
late = Late()
"""
"""Runs when Python is shutting down and no thread runs any more: only the launcher can tell that it writes."""


@pytest.mark.parametrize(
    ("last_line", "flags"),
    [
        ("ThreadPoolExecutor(1).submit(save)", ()),
        ("ThreadPoolExecutor(1).submit(save)", ("--no-record",)),
        ("atexit.register(save)", ()),
        ("multiprocessing.get_context('fork').Process(target=save).start()", ()),
        ("subprocess.Popen([sys.executable, '-c', open(__file__).read().replace('subprocess.Popen', 'save()#')])", ()),
        (LATE, ()),
    ],
    ids=["thread", "unrecorded", "exit handler", "child", "program", "destructor"],
)
def test_what_is_still_being_written_is_written_to_its_end(run_topout, tmp_path, last_line, flags):
    (tmp_path / "train.py").write_text(SAVES_SLOWLY + last_line)
    done = run_topout(["run", "-n", 1, "-q", "--no-report", *flags, "train.py"])
    assert done.code == 0, done.stderr
    assert (tmp_path / "saved").stat().st_size == 1_200_000


FORGETS = """
import atexit, subprocess, sys, time
metrics = open("metrics.csv", "w")
metrics.write("1,2")  # the interpreter writes it when it ends
idle = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
writes = "import time\\nwith open('copied', 'wb') as f:\\n for _ in range(300): f.write(bytes(99999)); time.sleep(0.1)"
subprocess.Popen([sys.executable, "-c", writes], start_new_session=True)
atexit.register(time.sleep, 3)
print(time.time(), flush=True)
"""


def test_an_idle_program_costs_seconds_and_no_file(run_topout, tmp_path):
    """Not even beside one that outlives the rank and goes on writing."""
    (tmp_path / "train.py").write_text(FORGETS)
    done = run_topout(["run", "-n", 1, "-q", "--no-report", "train.py"])
    ended_s = time.time()
    assert done.code == 0, done.stderr
    assert (tmp_path / "metrics.csv").read_text() == "1,2"
    assert ended_s - float(done.stdout) < 15


def notes_of(tmp_path) -> list[str]:
    (run,) = (tmp_path / "topout-runs").iterdir()
    return json.loads((run / "run.json").read_text())["notes"]


def test_that_a_script_was_waited_for_is_noted(run_topout, tmp_path):
    (tmp_path / "train.py").write_text(SAVES_SLOWLY + "atexit.register(save)")
    run_topout(["run", "-n", 1, "-q", "--no-report", "train.py"])
    (note,) = notes_of(tmp_path)
    assert note.startswith("rank 0: the script still worked in threads, children or exit handlers after its last line")


def test_a_failure_does_not_cut_off_what_is_being_written(run_topout, tmp_path):
    (tmp_path / "train.py").write_text(SAVES_SLOWLY + "ThreadPoolExecutor(1).submit(save)\nraise ValueError('first')")
    done = run_topout(["run", "-n", 1, "-q", "--no-report", "train.py"])
    assert done.code == 1
    assert "ValueError: first" in done.stderr
    assert (tmp_path / "saved").stat().st_size == 1_200_000


FEEDS = """
import multiprocessing, threading, time
def produce(queue):
    while True:
        queue.put(bytes(1 << 20))
def drain():
    while True:
        queue.get()
log = open("log", "w")
context = multiprocessing.get_context("fork")
queue = context.Queue(4)
threading.Thread(target=drain, daemon=True).start()
context.Process(target=produce, args=(queue,)).start()
time.sleep(0.5)
raise ValueError("first")
"""


def test_children_that_feed_a_rank_do_not_keep_it_from_failing(run_topout, tmp_path):
    (tmp_path / "train.py").write_text(FEEDS)
    done = run_topout(["run", "-n", 1, "-q", "--no-report", "train.py"])
    assert done.code == 1
    assert not [note for note in notes_of(tmp_path) if "waited for" in note]


@pytest.mark.parametrize(
    ("program", "is_writing"),
    [("cat /dev/zero", False), ("cat /dev/zero | cat > /dev/null", True)],
    ids=["to the rank", "among themselves"],
)
def test_what_programs_send_to_their_rank_is_not_written(program, is_writing):
    child = subprocess.Popen(program, shell=True, stdout=subprocess.PIPE, start_new_session=True)
    threading.Thread(target=lambda: [None for _ in iter(lambda: child.stdout.read(1 << 20), b"")], daemon=True).start()
    time.sleep(0.2)
    writing = Writing(os.getpid())
    before = writing.look()
    time.sleep(0.5)
    assert (writing.look() - before >= WORTH_WAITING_BYTES) == is_writing
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def did(written_bytes: int = 0, cpu_s: float = 0.0, *, is_held: bool = False) -> Doings:
    return Doings(written_bytes=written_bytes, cpu_ns=round(cpu_s * 1e9), is_held=is_held)


def quiet_at(patience: Patience, end_s: int, doings) -> list[float]:
    """How long it has been quiet after each second."""
    quiet_s = []
    for now_s in range(1, end_s + 1):
        patience.look(now_s, doings(now_s))
        quiet_s.append(patience.quiet_s(now_s))
    return quiet_s


def test_who_does_nothing_is_quiet_from_the_last_line_on():
    assert quiet_at(Patience(0), 4, lambda now_s: did(1 << 30, 10)) == [1, 2, 3, 4]


def test_who_writes_is_waited_for_and_no_longer_than_half_an_hour():
    quiet_s = quiet_at(Patience(0), 1810, lambda now_s: did(now_s << 20))
    assert max(quiet_s[1:1800]) == 0
    assert quiet_s[-1] == 10


def test_after_a_failure_who_writes_is_waited_for_half_a_minute():
    quiet_s = quiet_at(Patience(0, limit_s=30), 40, lambda now_s: did(now_s << 20))
    assert max(quiet_s[1:30]) == 0
    assert quiet_s[-1] == 10


def test_a_few_lines_now_and_then_are_nobodys_checkpoint():
    assert quiet_at(Patience(0), 4, lambda now_s: did(1000 * now_s)) == [1, 2, 3, 4]


def test_who_computes_is_waited_for_a_minute():
    quiet_s = quiet_at(Patience(0), 70, lambda now_s: did(0, now_s / 2))
    assert max(quiet_s[1:60]) == 0
    assert quiet_s[-1] == 10


def test_the_minute_begins_anew_with_what_was_written():
    quiet_s = quiet_at(Patience(0), 140, lambda now_s: did(100_000 * (now_s // 50), now_s))
    assert max(quiet_s[1:]) == 0


def test_a_long_fsync_is_waited_for():
    assert quiet_at(Patience(0), 20, lambda now_s: did(is_held=True))[-1] == 0


def test_after_a_failure_only_writing_counts():
    assert quiet_at(Patience(0, is_for_computing=False), 4, lambda now_s: did(0, now_s)) == [1, 2, 3, 4]


def test_what_the_recorder_writes_is_not_the_scripts():
    patience = Patience(0)
    patience.look(1, did(0))
    patience.leave_out()
    assert not patience.look(2, did(1 << 20))
    assert patience.quiet_s(2) == 2


def efforts(share: float, *, burst_s: float, every_s: float) -> list[bool]:
    """Of looks twice a second at somebody who computes for a while once in `every_s`."""
    effort = Effort(share)
    return [effort.is_made(look / 2, round(burst_s * (look // (2 * every_s)) * 1e9)) for look in range(21)]


def test_a_burst_now_and_then_is_no_effort():
    assert not any(efforts(0.1, burst_s=0.06, every_s=1))
    assert any(efforts(0.1, burst_s=0.15, every_s=1))
    assert not any(efforts(0.25, burst_s=0.3, every_s=2))


def test_an_effort_is_seen_although_another_ended():
    effort = Effort(0.1)
    assert [effort.is_made(s, round(cpu_s * 1e9)) for s, cpu_s in [(0, 9), (1, 10), (2, 0.5), (3, 1.5)]] == [
        False,
        True,
        False,
        True,
    ]


class Burning:
    """A thread that Python would wait for, and that uses a share of a core until told otherwise, 20 s at most."""

    def __init__(self, share: float, seconds: float = 20.0) -> None:
        self._share = share
        self.is_over = threading.Event()
        self._timer = threading.Timer(seconds, self.is_over.set)
        self._timer.daemon = True
        self._thread = threading.Thread(target=self._burn)

    def _burn(self) -> None:
        while not self.is_over.is_set():
            until_s = time.thread_time() + 0.4 * self._share
            begun_s = time.monotonic()
            while time.thread_time() < until_s:
                pass
            self.is_over.wait(max(0.0, begun_s + 0.4 - time.monotonic()))

    def __enter__(self) -> "Burning":
        self._timer.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self._thread.join()


def left(code: int = 0, recorder: Recorder | None = None) -> Leaving:
    return Leaving(code, StatusLine(None), recorder, 4.0)


def cut_by_steps() -> Recorder:
    recorder = Recorder(Settings(record=False, steps=2), StatusLine(None))
    recorder.num_steps = 2
    return recorder


def test_a_thread_that_hardly_computes_is_waited_for_a_while_alone(monkeypatch):
    monkeypatch.setattr(leaving, "_COMPUTING_LIMIT_S", 2.0)
    with Burning(0.15) as burning:
        left().await_threads()
        assert not burning.is_over.is_set()


def test_children_that_compute_beside_an_idle_thread_have_the_minute_alone(monkeypatch):
    monkeypatch.setattr(leaving, "_COMPUTING_LIMIT_S", 2.0)
    with Burning(0.0) as idle, subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        left().await_threads()
        assert not idle.is_over.is_set()
        child.kill()


def test_an_inherited_file_that_gets_on_is_a_way_out(tmp_path):
    writing = Writing(os.getpid())
    with open(tmp_path / "out", "wb", buffering=0) as file:
        way = f"{file.fileno()} {file.name}"
        is_out = [writing._leads_out(os.getpid(), str(file.fileno()), way, {way})]
        file.write(b"x")
        is_out.append(writing._leads_out(os.getpid(), str(file.fileno()), way, {way}))
    assert is_out == [False, True]


def test_a_thread_that_computes_hard_may_train_and_is_never_cut(monkeypatch):
    monkeypatch.setattr(leaving, "_COMPUTING_LIMIT_S", 1.0)
    with Burning(0.9, seconds=6.0) as burning:
        left().await_threads()
        assert burning.is_over.is_set()


@pytest.mark.parametrize(("code", "find_recorder"), [(1, lambda: None), (0, cut_by_steps)], ids=["failed", "cut"])
def test_nobody_waits_for_what_a_script_that_ended_early_computes(code, find_recorder):
    with Burning(0.9) as burning:
        left(code, find_recorder()).await_threads()
        assert not burning.is_over.is_set()


FINISHES_SLOWLY = """
import time, topout
from topout.record import before_leaving
before_leaving.register(lambda: time.sleep(6))
for _ in range(6):
    time.sleep(0.02)
    topout.step()
"""


def test_what_is_finished_after_the_last_line_holds_nobody_up_and_is_noted(run_topout, tmp_path):
    (tmp_path / "train.py").write_text(FINISHES_SLOWLY)
    done = run_topout(["run", "-n", 1, "--no-report", "train.py"], env={"TOPOUT_HANG_NAMED_S": "1.5"})
    assert done.code == 0, done.stderr
    assert "no step for" not in done.stderr
    assert [note for note in notes_of(tmp_path) if note.endswith("was waited for")]


def test_the_seconds_for_leaving_begin_when_all_is_finished():
    leaving_rank = left()
    leaving_rank.finish(lambda: time.sleep(3))
    assert leaving_rank._patience.quiet_s(time.monotonic()) < 2
