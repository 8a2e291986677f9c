"""A rank ends within seconds of its script's last line, but not before what the script still writes is written."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from topout.record import leaving
from topout.record.leaving import Leaving
from topout.record.process_tree import WORTH_WAITING_BYTES, Writing, descendants
from topout.record.recorder import Recorder
from topout.record.settings import Settings
from topout.record.status import StatusLine

pytestmark = pytest.mark.alone

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
    writing = Writing(os.getpid(), descendants)
    before = writing.look()
    time.sleep(0.5)
    assert (writing.look() - before >= WORTH_WAITING_BYTES) == is_writing
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()


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


@contextlib.contextmanager
def program(*words, **how):
    """Python as a child that is ended whatever comes."""
    with subprocess.Popen([sys.executable, *words], **how) as child:
        try:
            yield child
        finally:
            child.kill()


def test_a_thread_that_hardly_computes_is_waited_for_a_while_alone(monkeypatch):
    monkeypatch.setattr(leaving, "_COMPUTING_LIMIT_S", 2.0)
    with Burning(0.15) as burning:
        left().await_threads()
        assert not burning.is_over.is_set()


def test_children_that_compute_beside_an_idle_thread_have_the_minute_alone(monkeypatch):
    monkeypatch.setattr(leaving, "_COMPUTING_LIMIT_S", 2.0)
    with Burning(0.0) as idle, program("-c", "while True: pass"):
        left().await_threads()
        assert not idle.is_over.is_set()


def test_a_thread_that_waits_for_its_workers_may_train_and_is_never_cut(monkeypatch):
    monkeypatch.setattr(leaving, "_COMPUTING_LIMIT_S", 1.0)
    # a busy machine gives workers less than a core
    monkeypatch.setattr(leaving, "_HARD_SHARE", 0.15)
    turns = ("-c", "while True: pass")
    with Burning(0.1, seconds=6.0) as burning, program(*turns), program(*turns):
        left().await_threads()
        assert burning.is_over.is_set()


WRITES = """
import sys, time
with open(sys.argv[1], "wb", buffering=0) as file:
    print(flush=True)
    for _ in range(150):
        file.write(bytes(100_000))
        time.sleep(0.1)
"""


@contextlib.contextmanager
def writing_program(path, **how):
    """One that has begun to write, for 15 s."""
    with program("-c", WRITES, path, stdout=subprocess.PIPE, **how) as child:
        child.stdout.read(1)
        yield


def test_no_thread_is_waited_for_because_of_a_program_that_outlives_the_rank(tmp_path):
    with Burning(0.0, seconds=10.0) as idle, writing_program(tmp_path / "copied", start_new_session=True):
        left().await_threads()
        assert not idle.is_over.is_set()


class Told(StatusLine):
    """What would go to the launcher."""

    def __init__(self) -> None:
        super().__init__(None)
        self.notes: list[str] = []

    def send(self, kind: str, **content: str) -> None:
        if kind == "note":
            self.notes.append(content["text"])


def test_a_program_that_writes_too_long_is_not_waited_for_and_that_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(leaving, "_WRITING_LIMIT_S", 3.0)
    status = Told()
    with writing_program(tmp_path / "copied"):
        Leaving(0, status, None, 4.0).await_children()
    assert status.notes == ["the script was ended although it still wrote 3 s after its last line"]


def test_an_idle_program_is_not_taken_for_the_daemon_thread_that_writes(tmp_path):
    is_over = threading.Event()

    def log() -> None:
        with open(tmp_path / "log", "wb", buffering=0) as file:
            for _ in range(150):
                file.write(bytes(100_000))
                if is_over.wait(0.1):
                    return
        is_over.set()

    thread = threading.Thread(target=log, daemon=True)
    thread.start()
    with program("-c", "import time; time.sleep(20)"):
        time.sleep(0.5)  # to load Python is work
        left().await_children()
        assert not is_over.is_set()
    is_over.set()
    thread.join()


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


def test_the_seconds_for_leaving_stand_still_while_the_job_is_stopped(monkeypatch):
    """Which is also said to the launcher, that may have run meanwhile."""
    leaving_rank, sent, slept_s = left(), [], []
    begun_s = now_s = time.monotonic()

    def sleep(seconds: float) -> None:
        nonlocal now_s
        slept_s.append(seconds)
        now_s += 100.5 if len(slept_s) == 3 else seconds

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(StatusLine, "send", lambda status, kind, **content: sent.append(kind))
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(SystemExit):
        leaving_rank._end_when_quiet()
    assert now_s - begun_s == pytest.approx(104, abs=0.1)
    assert sent == ["working"]


def test_the_seconds_for_leaving_begin_when_all_is_finished():
    leaving_rank = left()
    leaving_rank.finish(lambda: time.sleep(3))
    assert leaving_rank._patience.quiet_s(time.monotonic()) < 2


RECORDS_SLOWLY = """
import pathlib, time, topout
from topout.record.recorder import current

def write():
    time.sleep(6)
    pathlib.Path("profile").touch()

current().at_last.append(write)
for _ in range(6):
    time.sleep(0.02)
    topout.step()
"""


def test_what_the_recorder_writes_at_the_end_is_not_cut_off(run_topout, tmp_path):
    (tmp_path / "train.py").write_text(RECORDS_SLOWLY)
    done = run_topout(["run", "-n", 1, "--no-report", "train.py"], env={"TOPOUT_HANG_NAMED_S": "1.5"})
    assert done.code == 0, done.stderr
    assert "no step for" not in done.stderr
    assert (tmp_path / "profile").exists()
    assert notes_of(tmp_path) == []


@pytest.mark.parametrize(("limit_s", "is_quiet"), [(60.0, False), (0.1, True)])
def test_what_the_recorder_does_last_has_a_limit_of_its_own(monkeypatch, limit_s, is_quiet):
    monkeypatch.setattr(leaving, "_RECORDER_LIMIT_S", limit_s)
    leaving_rank = left()
    quiet_s = []

    def write():
        time.sleep(1.5)
        quiet_s.append(leaving_rank._patience.quiet_s(time.monotonic()))

    leaving_rank.give_time(write)
    assert (quiet_s[0] > 1) == is_quiet
    assert leaving_rank._patience.quiet_s(time.monotonic()) < 1
