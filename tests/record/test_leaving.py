"""A rank ends within seconds of its script's last line, but not before what the script still writes is written."""

import json

import pytest

from topout.record.leaving import Doings, Patience

SAVES_SLOWLY = """
import atexit, multiprocessing, os, sys, time
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
        (LATE, ()),
    ],
    ids=["thread", "unrecorded", "exit handler", "child", "destructor"],
)
def test_what_is_still_being_written_is_written_to_its_end(run_topout, tmp_path, last_line, flags):
    (tmp_path / "train.py").write_text(SAVES_SLOWLY + last_line)
    done = run_topout(["run", "-n", 1, "-q", "--no-report", *flags, "train.py"])
    assert done.code == 0, done.stderr
    assert (tmp_path / "saved").stat().st_size == 1_200_000


def test_that_a_script_was_waited_for_is_noted(run_topout, tmp_path):
    (tmp_path / "train.py").write_text(SAVES_SLOWLY + "atexit.register(save)")
    run_topout(["run", "-n", 1, "-q", "--no-report", "train.py"])
    (run,) = (tmp_path / "topout-runs").iterdir()
    (note,) = json.loads((run / "run.json").read_text())["notes"]
    assert note.startswith("rank 0: the script still worked in threads, children or exit handlers after its last line")


def test_a_failure_does_not_cut_off_what_is_being_written(run_topout, tmp_path):
    (tmp_path / "train.py").write_text(SAVES_SLOWLY + "ThreadPoolExecutor(1).submit(save)\nraise ValueError('first')")
    done = run_topout(["run", "-n", 1, "-q", "--no-report", "train.py"])
    assert done.code == 1
    assert "ValueError: first" in done.stderr
    assert (tmp_path / "saved").stat().st_size == 1_200_000


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
