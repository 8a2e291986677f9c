"""`topout watch` shows what a run folder holds, of a few ranks and of many, while it grows."""

import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from rich.console import Console

from topout.cli.endings import Ending
from topout.cli.live import BlockTail, LiveRank, LiveRun, Watcher
from topout.cli.watch import _follow_in_a_log, pane, summary
from topout.record.writer import EventWriter
from topout.schema.block import MAGIC, BlockType, seal
from topout.schema.event import NOT_GIVEN, Kind, pack_code
from topout.schema.run_folder import RunFolder, open_run

MS = 1_000_000


def write_steps(writer: EventWriter, first: int, last: int) -> None:
    """Steps of 100 ms, of which the first 25 ms wait for input."""
    for step in range(first, last + 1):
        writer.append(pack_code(Kind.INPUT), step * 100 * MS, 25 * MS, 8, 0)
        writer.append(pack_code(Kind.STEP), step * 100 * MS, 100 * MS, NOT_GIVEN, step)
    writer.flush()


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    folder = RunFolder(tmp_path / "run-1")
    folder.path.mkdir()
    write_run(folder, "running")
    return folder


def write_run(folder: RunFolder, status: str, code: int | None = None, num_ranks: int = 2) -> None:
    entries = [{"rank": rank, "host": "n1", "exit_code": code, "signal": None} for rank in range(num_ranks)]
    folder.run_json.write_text(json.dumps({"version": 1, "status": status, "ranks": entries}))


def test_a_growing_run_is_followed(folder):
    events = EventWriter(folder.events(0), pytest.fail)
    counters = EventWriter(folder.counters(0), pytest.fail)
    watcher = Watcher(folder.path)
    assert [rank.status for rank in watcher.look().ranks] == ["starting", "starting"]
    write_steps(events, 0, 9)
    for name, value in (("resident_bytes", 300), ("worker_resident_bytes", 20)):
        counters.append(pack_code(Kind.COUNTER, counters.name_id(name)), 1, 0, value, NOT_GIVEN)
    counters.flush()
    first, second = watcher.look().ranks
    assert (first.status, first.step, first.step_ns) == ("training", 9, 100 * MS)
    assert first.input_share == 0.25
    assert first.memory_bytes == 320
    assert (second.status, second.step, second.memory_bytes) == ("starting", None, None)
    write_steps(events, 10, 12)
    assert watcher.look().ranks[0].step == 12
    write_run(folder, "finished", 0)
    live_run = watcher.look()
    assert (live_run.status, [rank.status for rank in live_run.ranks]) == ("finished", ["done", "done"])


def test_a_block_written_in_two_halves_is_read_when_it_is_whole(tmp_path):
    writer = EventWriter(tmp_path / "whole", pytest.fail)
    write_steps(writer, 0, 3)
    data = (tmp_path / "whole").read_bytes()
    tail = BlockTail(tmp_path / "part")
    (tmp_path / "part").write_bytes(data[:50])
    assert tail.rows() == []
    (tmp_path / "part").write_bytes(data)
    (rows,) = tail.rows()
    assert rows.shape == (5, 8)
    assert tail.rows() == []


def write_long(folder: RunFolder, num_blocks: int = 1000) -> int:
    """Steps of 100 ms, 25 of them a block, with names at both ends; how many bytes there are."""
    events = EventWriter(folder.events(0), pytest.fail)
    counters = EventWriter(folder.counters(0), pytest.fail)
    for block in range(num_blocks):
        write_steps(events, 25 * block, 25 * block + 24)
        for name in ("resident_bytes", "worker_resident_bytes"):
            counters.append(pack_code(Kind.COUNTER, counters.name_id(name)), block, 0, 100 + block, NOT_GIVEN)
        counters.flush()
    return folder.events(0).stat().st_size


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])


def test_of_a_long_recording_the_beginning_and_the_end_are_read(folder):
    num_bytes = write_long(folder)
    assert num_bytes > 1_900_000
    before = bytes_read()
    tail = BlockTail(folder.events(0))
    rows = tail.rows()
    assert bytes_read() - before < num_bytes * 0.35
    assert (len(rows), rows[-1][4, -1], rows[0][4, -1]) == (40, 24_999, 23_999 + 25)
    # what is appended later is followed from there
    with open(folder.events(0), "ab") as file:
        file.write(seal(BlockType.FACTS, b'{"ended": true}'))
    assert (tail.rows(), tail.facts) == ([], {"ended": True})


def test_a_long_recording_shows_what_reading_all_of_it_shows(folder, monkeypatch):
    write_long(folder)
    shown = Watcher(folder.path).look().ranks[0]
    monkeypatch.setattr("topout.cli.live._END_BYTES", 1 << 30)
    whole = Watcher(folder.path).look().ranks[0]
    assert replace(shown, silent_s=None) == replace(whole, silent_s=None)
    assert (shown.step, shown.step_ns, shown.input_share, shown.memory_bytes) == (24_999, 100 * MS, 0.25, 2 * 1099)


def test_a_word_that_looks_like_the_beginning_of_a_block_is_none(folder):
    events = EventWriter(folder.events(0), pytest.fail)
    magic = int.from_bytes(MAGIC, "little")
    for step in range(40_000):
        # an empty block's header, were it not inside another's rows
        events.append(pack_code(Kind.STEP), step * 100 * MS, magic, 0, step)
        if step % 100 == 99:
            events.flush()
    (*_, newest) = BlockTail(folder.events(0)).rows()
    assert newest[4].tolist() == list(range(39_900, 40_000))


def test_a_long_recording_whose_end_holds_no_whole_block_is_read_from_its_beginning(folder):
    num_bytes = write_long(folder)
    with open(folder.events(0), "ab") as file:
        file.write(seal(BlockType.ROWS, bytes(5 * 8 * 20_000))[:-1])
    tail = BlockTail(folder.events(0))
    assert tail.rows()[-1][4, -1] == 24_999
    assert folder.events(0).stat().st_size > num_bytes + 512 * 1024


def test_a_recording_that_begins_anew_at_its_limit_is_followed_on(folder):
    events = EventWriter(folder.events(0), pytest.fail, limit_bytes=20_000)
    watcher = Watcher(folder.path)
    seen = []
    for first in range(0, 1000, 10):
        write_steps(events, first, first + 9)
        seen.append(watcher.look().ranks[0].step)
    assert folder.events(0).stat().st_size <= 20_000
    assert seen == list(range(9, 1000, 10))


def opened(monkeypatch) -> list[str]:
    """The names of files that are opened from now on, and of runs that are read."""
    names = []

    def count(path, mode):
        names.append(Path(path).name)
        return open(path, mode)

    def read(path):
        names.append("the whole run.json")
        return open_run(path)

    monkeypatch.setattr("topout.cli.live.open", count, raising=False)
    monkeypatch.setattr("topout.cli.live.open_run", read)
    return names


def test_what_has_not_changed_is_not_read_again(folder, monkeypatch):
    writers = [EventWriter(folder.events(rank), pytest.fail) for rank in range(2)]
    watcher = Watcher(folder.path)
    for writer in writers:
        write_steps(writer, 0, 9)
    names = opened(monkeypatch)
    first = watcher.look()
    assert names == ["run.json", "the whole run.json", "rank-00000.events", "rank-00001.events"]
    del names[:]
    same = watcher.look()
    assert (names, [rank.step for rank in same.ranks]) == (["run.json"], [rank.step for rank in first.ranks])
    assert all(rank.silent_s is not None for rank in same.ranks)
    del names[:]
    write_steps(writers[1], 10, 12)
    assert [rank.step for rank in watcher.look().ranks] == [9, 12]
    assert names == ["run.json", "rank-00001.events"]


def test_of_more_ranks_than_asked_for_some_are_looked_at_each_time(folder):
    write_run(folder, "running", num_ranks=5)
    writers = [EventWriter(folder.events(rank), pytest.fail) for rank in range(5)]
    watcher = Watcher(folder.path)

    def seen(step: int) -> list[int | None]:
        for writer in writers:
            write_steps(writer, step, step)
        return [rank.step for rank in watcher.look(2).ranks]

    assert [seen(step) for step in range(4)] == [[0] * 5, [1, 1, 0, 0, 0], [1, 1, 2, 2, 0], [3, 1, 2, 2, 3]]
    write_run(folder, "finished", 0, num_ranks=5)
    assert seen(4) == [4] * 5


def test_in_a_log_ranks_are_looked_at_for_each_line(monkeypatch, capsys):
    now = [0.0]

    class Job:
        looked_at: ClassVar[list[float]] = []

        def look(self):
            self.looked_at.append(now[0])
            return LiveRun(run="r", status="running" if self.is_running() else "finished", ranks=())

        def is_running(self):
            return now[0] < 150

    monkeypatch.setattr("topout.cli.watch.time.monotonic", lambda: now[0])
    monkeypatch.setattr("topout.cli.watch.time.sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    assert _follow_in_a_log(Job()).status == "finished"
    assert Job.looked_at == [0, 60, 120, 150]
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["running"] * 3 + ["finished"]


def test_a_run_that_is_lost_between_two_lines_is_told_as_such(folder, monkeypatch):
    watcher = Watcher(folder.path)
    assert watcher.is_running()
    monkeypatch.setattr("topout.cli.live.ending_of", lambda folder, run: Ending("silent", "gone"))
    watcher._next_question = 0.0
    assert not watcher.is_running()
    assert (watcher.look().status, watcher.look().note) == ("silent", "gone")


def many(num_ranks: int) -> LiveRun:
    ranks = [LiveRank(rank=rank, host="n1", status="training", step=50, step_ns=MS) for rank in range(num_ranks)]
    ranks[70] = LiveRank(rank=70, host="n2", status="silent", step=44, silent_s=40.0)
    return LiveRun(run="r", status="running", ranks=tuple(ranks))


def test_of_many_ranks_those_in_trouble_are_shown():
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(pane(many(100), most_rows=10))
    lines = console.export_text().splitlines()
    assert len([line for line in lines if "n1" in line]) == 9
    assert len([line for line in lines if "silent for 40 s" in line]) == 1
    assert "90 ranks like these not shown" in " ".join(" ".join(lines).split())


def test_one_line_says_how_far_and_who_is_missing():
    assert summary(many(100)) == "running  100 ranks  steps 44 to 50  1.0 ms a step  silent: 70"


def test_once_and_json_print_one_frame(run_topout, folder):
    write_steps(EventWriter(folder.events(0), pytest.fail), 0, 9)
    shown = run_topout(["watch", "--once", folder.path])
    assert (shown.code, "100.0 ms" in shown.stdout) == (0, True)
    found = json.loads(run_topout(["watch", "--json", folder.path]).stdout)
    assert (found["run"], found["ranks"][0]["step"]) == ("run-1", 9)


def test_watching_ends_with_the_run(run_topout, folder):
    write_run(folder, "finished", 0)
    shown = run_topout(["watch", folder.path])
    assert (shown.code, shown.stdout) == (0, "finished  2 ranks\n")


def test_what_is_no_run_is_said_so(run_topout, tmp_path):
    shown = run_topout(["watch", tmp_path / "absent"])
    assert shown.code == 2
    assert "is not a run folder" in shown.stderr


def test_a_job_in_line_is_told_as_such(run_topout, tmp_path):
    job = tmp_path / "topout-runs/jobs/2026-11-15-train-1"
    job.mkdir(parents=True)
    (job / "job.json").write_text('{"version": 1, "scheduler": "slurm"}')
    (job / "job_ids").write_text("17\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/squeue").write_text("#!/bin/sh\necho PENDING\n")
    (tmp_path / "bin/squeue").chmod(0o755)
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    for name in ("17", "topout-runs/jobs/2026-11-15-train-1"):
        ended = run_topout(["watch", "--once", name], env=env)
        assert (ended.code, ended.stdout) == (0, "job 17 is pending\n"), ended.stderr
    assert run_topout(["watch", "--json", "17"], env=env).stdout == '{"job": "17", "status": "pending"}\n'


def test_a_job_is_watched_from_run_to_run(run_topout, tmp_path):
    job = tmp_path / "topout-runs/jobs/2026-11-15-train-1"
    job.mkdir(parents=True)
    (job / "job.json").write_text('{"version": 1, "scheduler": "slurm"}')
    (job / "job_ids").write_text("17\n")
    for number, code in ((1, 75), (2, 0)):
        folder = tmp_path / f"topout-runs/run-{number}"
        folder.mkdir()
        (folder / "run.json").write_text(
            json.dumps(
                {
                    "version": 1,
                    "status": "finished",
                    "exit_code": code,
                    "ranks": [],
                    "job": str(job),
                    "started_at": str(number),
                }
            )
        )
    ended = run_topout(["watch", "17"], env={"PATH": "/usr/bin:/bin"})
    assert ended.code == 0, ended.stderr
    assert ended.stderr.splitlines() == ["Next    topout analyze topout-runs/run-2"]


@pytest.mark.parametrize("ranks", [None, -1, "x", [{"rank": "a"}], [{}], ["x"]])
def test_a_run_that_somebody_damaged_is_shown_as_far_as_it_can_be(folder, ranks):
    folder.run_json.write_text(json.dumps({"version": 1, "status": None, "ranks": ranks}))
    assert Watcher(folder.path).look() == LiveRun(run="run-1", status="unknown", ranks=())


@pytest.mark.timeout(30)
def test_a_pipe_in_place_of_a_recording_is_not_waited_for(folder):
    os.mkfifo(folder.events(0))
    write_steps(EventWriter(folder.events(1), pytest.fail), 0, 9)
    assert [rank.step for rank in Watcher(folder.path).look().ranks] == [None, 9]


def test_a_width_that_is_not_known_is_no_width(folder, run_topout):
    for words in (["watch", folder.path, "--once"], ["--help"]):
        narrow = run_topout(words, env={"COLUMNS": "0"})
        assert (narrow.code, narrow.stdout) == (0, run_topout(words, env={"COLUMNS": "80"}).stdout)
        assert len(narrow.stdout.splitlines()) > 5


@pytest.mark.parametrize(("kept", "told"), [(["17", "18"], "those kept there: 17, 18"), ([], "none is kept there")])
def test_a_number_that_nobody_knows_is_answered_with_what_there_is(run_topout, tmp_path, kept, told):
    for number in kept:
        job = tmp_path / f"topout-runs/jobs/2026-11-15-train-{number}"
        job.mkdir(parents=True)
        (job / "job.json").write_text('{"version": 1, "scheduler": "slurm"}')
        (job / "job_ids").write_text(f"{number}\n")
    ended = run_topout(["watch", "12345"])
    problem, why, do = ended.stderr.splitlines()
    assert (ended.code, problem) == (2, "There is neither a run folder 12345 nor a job 12345.")
    assert "topout-runs/jobs" in why and told in why
    assert "from the folder in which the job was submitted" in do
