"""What a rank writes on its page can be read from outside, and whole, whatever becomes of it; nobody else writes it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.launch.jobs import wait_for
from topout.record import status_page
from topout.record.page_snapshot import Call, Position, Snapshot
from topout.record.status_page import PAGE_FD, StatusPage


@pytest.fixture
def page():
    made, fd = StatusPage.create()
    os.close(fd)
    made._words[status_page._PID] = os.getpid()
    yield made
    made.close()


@pytest.fixture
def in_rank():
    """Runs Python code as a rank would run: with a page of its own, named in the environment."""
    started = []

    def start(code: str, **env: str) -> tuple["subprocess.Popen[str]", StatusPage]:
        page, fd = StatusPage.create()
        rank = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, PAGE_FD: str(fd), **env},
            pass_fds=(fd,),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        os.close(fd)
        started.append(rank)
        return rank, page

    yield start
    for rank in started:
        rank.kill()
        rank.communicate()


def test_a_page_nobody_has_attached_to_says_nothing():
    page, fd = StatusPage.create()
    os.close(fd)
    assert page.read() is None


def test_times_become_ages(page):
    page.step(1, 1_000_000_000)
    page.step(2, 3_000_000_000)
    page.step(3, 5_000_000_000)
    page.stir(6_000_000_000)
    page.beat(7_500_000_000)
    seen = page.read(at_ns=8_000_000_000)
    assert (seen.num_steps, seen.step_age_s, seen.usual_step_s) == (3, 3.0, 2.0)
    assert (seen.stir_age_s, seen.look_age_s, seen.progress_age_s) == (2.0, 0.5, 2.0)


def test_nothing_is_known_before_it_is_said(page):
    assert page.read() == Snapshot()
    assert page.read().progress_age_s is None


def test_one_step_is_not_yet_usual(page):
    page.step(1, 1_000_000_000)
    assert page.read().usual_step_s is None


def test_a_collective_is_entered_and_left(page):
    page.enter(b"all_reduce", b"@3", 56, 44_900_000, 1_000_000_000)
    seen = page.read(at_ns=4_000_000_000)
    assert seen.is_inside
    assert seen.called == Call(operation="all_reduce", group="@3", sequence=56, num_bytes=44_900_000, age_s=3.0)
    page.leave(5_000_000_000)
    assert not page.read().is_inside


def test_what_is_not_known_of_a_collective_is_none(page):
    page.enter(b"recv", b"", -1, -1, 1)
    called = page.read().called
    assert (called.sequence, called.num_bytes) == (None, None)


def test_a_pending_collective_comes_and_goes(page):
    page.put_pending("broadcast", "nccl:0", 7, 8, 1_000_000_000)
    seen = page.read(at_ns=2_000_000_000).pending
    assert seen == Call(operation="broadcast", group="nccl:0", sequence=7, num_bytes=8, age_s=1.0)
    page.clear_pending()
    assert page.read().pending is None


def test_of_many_groups_those_are_kept_that_changed_last(page):
    rows = [(f"gloo:{n}", n, n - 1, (100 + n) * 1_000_000_000) for n in range(40)]
    page.put_groups(rows, has_process_group=True)
    seen = page.read(at_ns=200_000_000_000)
    assert [position.group for position in seen.positions] == [f"gloo:{n}" for n in range(39, 23, -1)]
    assert seen.positions[0] == Position(group="gloo:39", reached=39, completed=38, age_s=61.0)
    assert seen.has_process_group


def test_a_long_line_is_cut_between_characters(page):
    page.put_place("", "ä" * 1000, "", 1)
    assert set(page.read().line) == {"ä"}


def test_a_section_that_is_being_written_is_not_believed(page):
    page.put_place("input", "train.py:1 in a", "", 1)
    assert page.read().line == "train.py:1 in a"
    counter = status_page._PLACE.start // 8
    page._words[counter] += 1
    status_page._PLACE.layout.pack_into(page._bytes, status_page._PLACE.start + 8, 1, b"", b"train.py:2 half", b"")
    assert page.read().line == "train.py:1 in a"
    page.put_place("", "train.py:3 in b", "", 1)
    assert page.read().line == "train.py:3 in b"


WRITE_FAST = """
from topout.record.status_page import StatusPage
page = StatusPage.from_environment()
number = 0
while True:
    number += 1
    page.enter(b"%020d" % number, b"%020d" % number, number, number, number)
"""


def test_no_read_mixes_two_writes(in_rank):
    _, page = in_rank(WRITE_FAST)
    assert wait_for(lambda: page.read() is not None and page.read().called is not None)
    seen = set()

    def many_reads_are_whole() -> bool:
        for _ in range(20_000):
            called = page.read().called
            assert called.operation == called.group == f"{called.sequence:020d}" == f"{called.num_bytes:020d}"
            seen.add(called.sequence)
        return len(seen) > 100

    assert wait_for(many_reads_are_whole)


def test_a_stopped_rank_can_still_be_read(in_rank):
    rank, page = in_rank(
        "from topout.record.status_page import StatusPage\n"
        "page = StatusPage.from_environment()\n"
        "page.put_place('', 'train.py:42 in load_shard', '', 1)\n"
        "print('ready', flush=True)\ninput()"
    )
    assert rank.stdout.readline() == "ready\n"
    rank.send_signal(signal.SIGSTOP)
    assert page.read().line == "train.py:42 in load_shard"
    rank.kill()
    rank.wait()
    assert page.read().line == "train.py:42 in load_shard"


FORKS = """
import os, subprocess, sys
from pathlib import Path
from topout.record.recorder import Recorder
from topout.record.settings import Settings
from topout.record.status import StatusLine
recorder = Recorder(Settings(run=Path(os.environ["RUN"])), StatusLine(None))
recorder.end_step(1_000)
if os.fork() == 0:
    recorder.end_step(2_000)
    recorder.page.enter(b"all_reduce", b"", 1, 1, 2_000)
    recorder.page.answer(99)
    os._exit(0)
os.wait()
child = subprocess.run([sys.executable, "-c", "import os; print('TOPOUT_PAGE_FD' in os.environ)"], close_fds=False,
                       capture_output=True, text=True)
print(child.stdout.strip(), any("topout-page" in os.readlink(f"/proc/self/fd/{fd}") and os.get_inheritable(int(fd))
                                for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")))
input()
"""


def test_neither_forked_workers_nor_child_programs_touch_the_page(in_rank, tmp_path):
    rank, page = in_rank(FORKS, RUN=str(tmp_path))
    assert rank.stdout.readline() == "False False\n"
    seen = page.read()
    assert (seen.num_steps, seen.called, seen.num_answered) == (1, None, 0)
    # the parent goes on looking after the fork
    before = time.monotonic()
    assert wait_for(lambda: page.read().look_age_s is not None and page.read().look_age_s < time.monotonic() - before)


@pytest.mark.parametrize("text", ["", "abc", "-1", "999999"])
def test_a_variable_that_names_no_page_is_ignored(text, monkeypatch):
    monkeypatch.setenv(PAGE_FD, text)
    assert StatusPage.from_environment() is None
    assert PAGE_FD not in os.environ


def test_a_descriptor_that_is_no_page_is_ignored(monkeypatch):
    read_fd, write_fd = os.pipe()
    monkeypatch.setenv(PAGE_FD, str(read_fd))
    assert StatusPage.from_environment() is None
    os.close(read_fd)
    os.close(write_fd)


def test_a_page_of_another_layout_is_left_alone(monkeypatch):
    page, fd = StatusPage.create()
    page._words[0] += 1 << 56
    monkeypatch.setenv(PAGE_FD, str(fd))
    assert StatusPage.from_environment() is None
    assert page._words[status_page._PID] == 0


def test_a_system_without_memfd_uses_a_file_without_a_name(monkeypatch, tmp_path):
    def refuse(*_: object) -> int:
        raise OSError

    monkeypatch.setattr(os, "memfd_create", refuse)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    _, fd = StatusPage.create()
    assert os.fstat(fd).st_nlink == 0
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv(PAGE_FD, str(fd))
    assert StatusPage.from_environment() is not None


ages = st.floats(0, 1e6)
maybe = st.none() | ages
calls = st.builds(
    Call,
    operation=st.text(max_size=5),
    group=st.text(max_size=5),
    sequence=st.none() | st.integers(0, 9),
    num_bytes=st.none() | st.integers(0, 9),
    age_s=ages,
)
positions = st.builds(
    Position, group=st.text(max_size=5), reached=st.integers(0, 9), completed=st.integers(0, 9), age_s=ages
)
snapshots = st.builds(
    Snapshot,
    num_steps=st.integers(0, 9),
    step_age_s=maybe,
    usual_step_s=maybe,
    stir_age_s=maybe,
    look_age_s=maybe,
    phase=st.text(max_size=5),
    line=st.text(max_size=5),
    called=st.none() | calls,
    is_inside=st.booleans(),
    pending=st.none() | calls,
    positions=st.lists(positions, max_size=3).map(tuple),
    has_process_group=st.booleans(),
)


@given(snapshots)
def test_a_snapshot_survives_the_wire(snapshot):
    assert Snapshot.from_wire(json.loads(json.dumps(snapshot.to_wire()))) == snapshot


def test_a_snapshot_of_a_newer_version_is_read_as_far_as_it_is_known():
    assert Snapshot.from_wire({"num_steps": 3, "colour": "red"}) == Snapshot(num_steps=3)
