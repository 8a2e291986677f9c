"""A rank looks at itself: its page tells where the script is, stacks are written on request, its end is not late."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import topout
from tests.launch.jobs import wait_for
from topout.record import lookout, torch_taps
from topout.record.lookout import Lookout, stacks_path
from topout.record.page_snapshot import Call, Snapshot
from topout.record.recorder import Recorder
from topout.record.settings import Settings
from topout.record.status import StatusLine
from topout.record.status_page import _LOOK, _PID, _STIR, PAGE_FD, StatusPage
from topout.record.whereabouts import _PHASES, Place, is_script, place_of, shown
from topout.schema.event import Kind
from topout.schema.run_folder import RunFolder
from topout.trace.readers.topout import read_rank


@pytest.fixture
def rank(tmp_path):
    """Runs a script as rank 3 under the recorder, with a page; the script's folder is the run folder."""
    started = []

    def start(script: str) -> tuple["subprocess.Popen[bytes]", StatusPage]:
        (tmp_path / "train.py").write_text(script)
        page, fd = StatusPage.create()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "topout.record.rank", "train.py"],
            cwd=tmp_path,
            env={**os.environ, "RANK": "3", "WORLD_SIZE": "1", "TOPOUT_RUN": str(tmp_path), PAGE_FD: str(fd)},
            pass_fds=(fd,),
        )
        os.close(fd)
        started.append(process)
        return process, page

    yield start
    for process in started:
        process.kill()
        process.wait()


def line(page: StatusPage) -> str:
    seen = page.read()
    return seen.line if seen is not None else ""


SLEEPS = """
import threading, time

def load_shard():
    time.sleep(1000)

threading.Thread(target=time.sleep, args=(1000,), name="prefetcher", daemon=True).start()
load_shard()
"""


def test_the_line_of_the_script_is_told_without_torch(rank):
    _, page = rank(SLEEPS)
    assert wait_for(lambda: line(page) == "train.py:5 in load_shard")
    seen = page.read()
    assert (seen.phase, seen.inner, seen.num_steps, seen.positions) == ("", "", 0, ())


def test_the_line_inside_a_library_is_told_beside_the_scripts(rank):
    _, page = rank("import subprocess\nsubprocess.run(['sleep', '1000'])")
    assert wait_for(lambda: line(page) == "train.py:2 in <module>")
    assert page.read().inner.startswith("subprocess.py:")


def test_an_import_is_told(rank, tmp_path):
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(1000)")
    _, page = rank("import slow")
    assert wait_for(lambda: line(page) == "slow.py:2 in <module>")
    assert page.read().phase == "import"


def test_stacks_of_all_threads_are_written_when_asked_for(rank, tmp_path):
    _, page = rank(SLEEPS)
    assert wait_for(lambda: line(page) == "train.py:5 in load_shard")
    number = page.ask()
    assert wait_for(lambda: page.read().num_answered == number)
    text = stacks_path(tmp_path, 3).read_text()
    assert "thread MainThread, outermost call first\n  train.py:8 in <module>\n  train.py:5 in load_shard\n" in text
    assert "thread prefetcher" in text
    assert "topout" not in text


def test_asked_again_it_adds_to_what_it_wrote(rank, tmp_path):
    _, page = rank(SLEEPS)
    for number in (1, 2):
        assert wait_for(lambda: page.read() is not None)
        assert page.ask() == number
        assert wait_for(lambda number=number: page.read().num_answered == number)
    text = stacks_path(tmp_path, 3).read_text()
    assert ("look 1\n" in text, "look 2\n" in text) == (True, True)


def test_of_many_hold_ups_the_stacks_of_the_last_are_kept(monkeypatch, tmp_path):
    monkeypatch.delenv(PAGE_FD, raising=False)
    recorder = Recorder(Settings(run=str(tmp_path), rank=3), StatusLine(None))
    page, fd = StatusPage.create()
    os.close(fd)
    page._words[_PID] = os.getpid()
    watching = Lookout(recorder, page)
    for number in range(1, 21):
        assert page.ask() == number
        watching._answer()
    text = stacks_path(tmp_path, 3).read_text()
    assert re.findall(r", look (\d+)\n", text) == [str(number) for number in range(5, 21)]
    recorder.finish()
    page.close()


def test_a_folder_that_cannot_be_written_does_not_end_the_looking(rank, tmp_path):
    (tmp_path / "hang").write_text("in the way")
    _, page = rank(SLEEPS)
    assert wait_for(lambda: line(page) == "train.py:5 in load_shard")
    page.ask()
    beaten: set[int] = set()
    assert wait_for(lambda: beaten.add(page._words[_LOOK]) or len(beaten) >= 4)
    assert page.read().num_answered == 0


def test_a_page_tells_that_the_script_is_over_and_its_end_is_not_held_up(rank):
    process, page = rank("x = 1")
    assert process.wait(30) == 0
    assert page.read().phase == "ended"


def test_rows_of_a_loop_without_steps_leave_while_it_runs(rank, tmp_path):
    """Else they would fill the memory, and nothing would be left of a rank that is killed."""
    process, page = rank("import time, topout\nwhile True:\n    topout.count('tokens', 2)\n    time.sleep(0.001)")
    events = RunFolder(tmp_path).events(3)
    assert wait_for(lambda: page.read() is not None and page.read().stir_age_s is not None)
    size = events.stat().st_size
    assert wait_for(lambda: events.stat().st_size > size + 4000)
    process.kill()
    process.wait()
    table = read_rank(RunFolder(tmp_path), 3)
    assert len(table.rows(Kind.COUNT)) > 50
    assert table.facts["rank"] == 3 and len(table.facts["clock_pairs"]) == 1


def test_as_many_rows_as_in_the_second_before_are_a_sign_of_life_too(monkeypatch, tmp_path):
    monkeypatch.delenv(PAGE_FD, raising=False)
    recorder = Recorder(Settings(run=str(tmp_path)), StatusLine(None))
    page = StatusPage.private()
    watching = Lookout(recorder, page)
    for _ in range(3):
        page.stir(0)
        recorder.counter("file_opens", 1)
        watching._look_at_rows()
        recorder.flush_late()
        assert page._words[_STIR] > 0
    recorder.finish()


def test_signals_are_left_to_the_script(rank):
    process, page = rank(SLEEPS.replace("threading.Thread", "# "))
    assert wait_for(lambda: line(page) == "train.py:5 in load_shard")
    blocks = {}
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        words = dict(row.split(":", 1) for row in (task / "status").read_text().splitlines())
        blocks[int(task.name)] = bool(int(words["SigBlk"], 16) >> (signal.SIGTERM - 1) & 1)
    assert blocks.pop(process.pid) is False
    assert list(blocks.values()) == [True]


def test_a_thread_that_is_gone_is_nowhere():
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    assert place_of(thread.ident) == Place()


def test_the_scripts_code_is_told_from_libraries(tmp_path):
    package = Path(topout.__file__).parent
    assert is_script(str(tmp_path / "train.py"))
    assert is_script("train.py")
    assert is_script(str(package / "recipes" / "digits.py"))
    assert not is_script(str(package / "record" / "rank.py"))
    assert not is_script("/venv/lib/python3.12/site-packages/torch/_tensor.py")
    assert not is_script(os.__file__)
    assert not is_script("<frozen importlib._bootstrap>")


def test_paths_are_shown_as_people_know_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shown(str(tmp_path / "sub" / "data.py")) == "sub/data.py"
    assert shown("/venv/lib/python3.12/site-packages/torch/_tensor.py") == "torch/_tensor.py"
    assert shown(threading.__file__) == "threading.py"
    assert shown("/elsewhere/train.py") == "train.py"


def test_a_compile_is_told(rank):
    _, page = rank(
        "import time, torch\n"
        "def slow(graph, inputs):\n"
        "    time.sleep(1000)\n"
        "torch.compile(lambda x: x + 1, backend=slow)(torch.ones(1))\n"
    )
    assert wait_for(lambda: line(page) == "train.py:3 in slow")
    assert page.read().phase == "compile"


def test_phases_are_told_by_functions_that_exist():
    taps = Path(torch_taps.__file__).parent.parent
    for path, function in _PHASES:
        if path.startswith("torch_taps/"):
            assert f"def {function}(" in (taps / path).read_text()


# how far a rank is in its groups


def call(number: int | None, group: str = "gloo:0") -> Call:
    return Call(operation="all_reduce", group=group, sequence=number, num_bytes=8, age_s=4.0)


class Groups:
    """A communication library that stands still, and counts how often its entries are read."""

    def __init__(self, positions: list[tuple[str, int, int]], pending: list[Call]) -> None:
        self.told = positions
        self.entries = pending
        self.num_reads = 0

    def is_initialized(self) -> bool:
        return True

    def positions(self) -> list[tuple[str, int, int]]:
        return self.told

    def pending(self) -> list[Call]:
        self.num_reads += 1
        return self.entries


@pytest.fixture
def after(monkeypatch):
    """What the page of a rank with these groups says after so many looks, one a second."""
    page, fd = StatusPage.create()
    os.close(fd)
    page._words[_PID] = os.getpid()
    clock_ns = [10**12]
    monkeypatch.setattr(lookout, "now_ns", lambda: clock_ns[0])
    made = Lookout(SimpleNamespace(main_thread=0), page)

    def look(groups: Groups, num_looks: int) -> Snapshot:
        made._recorder.groups = groups
        for _ in range(num_looks):
            made._look_at_groups()
            clock_ns[0] += 10**9
        return page.read(clock_ns[0])

    yield look
    page.close()


def over(seen: Snapshot) -> dict[str, tuple[int, int]]:
    return {position.group: (position.reached, position.completed) for position in seen.positions}


def test_collectives_that_ended_out_of_order_are_over(after):
    """#74 ended before #73, so torch tells 73; no entry is left open."""
    groups = Groups([("gloo:0", 74, 73)], [])
    assert over(after(groups, 3)) == {"gloo:0": (74, 73)}
    seen = after(groups, 6)
    assert (over(seen), seen.pending) == ({"gloo:0": (74, 74)}, None)
    assert (seen.positions[0].age_s, seen.stir_age_s, groups.num_reads) == (
        9.0,
        9.0,
        1,
    )  # to know better is no progress


def test_a_rank_waits_in_the_first_collective_that_is_not_over(after):
    groups = Groups([("gloo:0", 76, 73)], [call(75), call(76)])
    seen = after(groups, 9)
    assert (over(seen), seen.pending.sequence, groups.num_reads) == ({"gloo:0": (76, 74)}, 75, 1)


def test_a_wait_is_told_in_the_group_in_which_it_is(after):
    """Group a has rested at 8 of 8 for longer than group b waits."""
    after(Groups([("gloo:a", 8, 7), ("gloo:b", 4, 4)], []), 3)
    seen = after(Groups([("gloo:a", 8, 7), ("gloo:b", 5, 4)], [call(5, "gloo:b")]), 6)
    assert over(seen) == {"gloo:a": (8, 8), "gloo:b": (5, 4)}
    assert (seen.pending.group, seen.pending.sequence) == ("gloo:b", 5)


def test_a_receive_that_is_not_over_is_not_taken_for_the_end_of_others(after):
    seen = after(Groups([("nccl:0", 6, 5)], [call(None, "nccl:0")]), 6)
    assert (over(seen), seen.pending.sequence) == ({"nccl:0": (6, 5)}, None)


def test_what_was_looked_up_counts_until_the_rank_gets_on(after):
    assert over(after(Groups([("gloo:0", 74, 73)], []), 6)) == {"gloo:0": (74, 74)}
    seen = after(Groups([("gloo:0", 75, 73)], [call(75)]), 6)
    assert (over(seen), seen.pending.sequence) == ({"gloo:0": (75, 74)}, 75)
