"""Counters are true of processes whose doings are known, and the sampler never gets in the way."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import topout.record.sampler as sampler_module
from tests.launch.jobs import state, wait_for
from topout.cli.live import BlockTail
from topout.record.process_tree import are_workers, descendants, read_cpu, read_io, read_resident_bytes
from topout.record.sampler import RankSampler, Sampler, Target
from topout.record.worker_state import StateProbe
from topout.schema.event import name_of


@pytest.fixture
def python(tmp_path):
    """Starts scripts as processes and ends them with the test; each says `ready` first."""
    started = []

    def start(script: str, **more) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            **more,
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def seen(pid: int, num_looks: int = 20) -> set[str | None]:
    probe = StateProbe(pid)
    states = set()
    for _ in range(num_looks):
        time.sleep(0.01)
        states.add(probe.look())
    probe.close()
    return states


def test_a_computing_process_runs(python):
    assert "running" in seen(python("print('ready', flush=True)\nwhile True: pass").pid)


def test_a_process_that_sleeps_or_reads_a_pipe_waits(python):
    assert "waiting" in seen(python("import time; print('ready', flush=True); time.sleep(60)").pid)
    assert "waiting" in seen(python("import sys; print('ready', flush=True); sys.stdin.read()").pid)


def test_calls_are_told_apart_by_what_they_open_or_read(tmp_path):
    """Classified from the kernel's own words, with this process's files standing for the worker's."""
    probe = StateProbe(os.getpid(), machine="x86_64")
    (tmp_path / "data").write_bytes(b"x")
    pipe_fd, other_fd = os.pipe()
    with open(tmp_path / "data", "rb") as file:
        on_file, on_pipe = b"0x%x" % file.fileno(), b"0x%x" % pipe_fd
        assert probe._classify([b"0", on_file], b"S") == "reading"
        assert probe._classify([b"0", on_pipe], b"S") == "waiting"
        assert probe._classify([b"257", b"0xffffff9c"], b"D") == "opening"
        assert probe._classify([b"-1", b"0x7ffe"], b"D") == "reading"
        assert probe._classify([b"202", b"0x1"], b"S") == "waiting"
    os.close(pipe_fd)
    os.close(other_fd)
    probe.close()


def test_a_process_that_is_gone_is_neither(python):
    process = python("print('ready', flush=True)")
    process.wait()
    assert seen(process.pid, 2) == {None}
    assert read_cpu(process.pid) is None
    assert read_io(process.pid) == {}
    assert read_resident_bytes(process.pid) is None


def test_bytes_and_calls_are_those_of_the_process(python):
    script = """
import os, sys
print("ready", flush=True)
sys.stdin.readline()
with open("data", "wb", buffering=0) as file:
    for _ in range(50):
        file.write(bytes(1000))
os.write(1, b"ready\\n")
sys.stdin.readline()
"""
    process = python(script)
    # the kernel counts a call after its bytes were read here: only once the next call waits, all are counted
    assert wait_for(lambda: state(process.pid) == "S")
    before = read_io(process.pid)
    process.stdin.write("\n")
    process.stdin.flush()
    process.stdout.readline()
    # the word ready is one more write of 6 bytes
    assert wait_for(lambda: read_io(process.pid)["write_calls"] - before["write_calls"] == 51)
    assert read_io(process.pid)["write_bytes"] - before["write_bytes"] == 50_006


def test_page_faults_are_those_of_the_process_and_not_of_its_children(python):
    script = """
import contextlib, mmap, os, sys
print("ready", flush=True)
sys.stdin.readline()
def touch(num_pages):
    with mmap.mmap(-1, num_pages * mmap.PAGESIZE) as pages:
        with contextlib.suppress(OSError):  # a kernel that has none
            pages.madvise(mmap.MADV_NOHUGEPAGE)
        for page in range(num_pages):
            pages[page * mmap.PAGESIZE] = 1
if os.fork() == 0:
    touch(30_000)
    os._exit(0)
os.wait()
touch(10_000)
os.write(1, b"ready\\n")
sys.stdin.readline()
"""
    process = python(script)
    before = read_cpu(process.pid).own_page_faults
    process.stdin.write("\n")
    process.stdin.flush()
    process.stdout.readline()
    assert 10_000 <= read_cpu(process.pid).own_page_faults - before < 20_000


FORKS = """
import os, time
children = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        end = time.monotonic() + 60
        while time.monotonic() < end: pass
    children.append(pid)
import subprocess
subprocess.Popen(["sleep", "60"])
print("ready", flush=True)
time.sleep(60)
"""


def test_workers_are_the_forks_and_not_other_programs(python):
    process = python(FORKS, start_new_session=True)
    assert wait_for(lambda: len(descendants(process.pid)) == 3)
    assert wait_for(lambda: len(are_workers(process.pid, descendants(process.pid))) == 2)
    os.killpg(process.pid, 9)


def test_a_rank_and_its_workers_are_counted(python, tmp_path):
    process = python(FORKS, start_new_session=True)
    notes: list[str] = []
    path = tmp_path / "rank-00000.counters"
    sampler = Sampler([Target(rank=0, pid=process.pid, gpu=None, path=path)], notes.append)
    sampler.start()
    counters: dict[str, list[int]] = {}
    tail = BlockTail(path)

    def has_looked_twice() -> bool:
        for rows in tail.rows():
            for code, value in zip(rows[0].tolist(), rows[3].tolist(), strict=True):
                counters.setdefault(tail.names[name_of(code)], []).append(value)
        return len(counters.get("input_samples_running", [])) >= 2

    assert wait_for(has_looked_twice)
    sampler.stop()
    os.killpg(process.pid, 9)
    assert notes == []
    assert counters["worker_cpu_ns"][-1] > counters["worker_cpu_ns"][0]
    assert counters["resident_bytes"][-1] > 1_000_000
    assert counters["worker_resident_bytes"][-1] > 1_000_000
    assert counters["input_samples_running"][-1] > 0
    assert counters["host_available_bytes"][-1] > 0
    for name in ("cpu_ns", "worker_cpu_ns", "read_calls", "write_bytes", "input_samples_running"):
        assert counters[name] == sorted(counters[name])


def test_a_run_that_has_lasted_long_gets_fewer_rows(python, tmp_path, monkeypatch):
    process = python("import time; print('ready', flush=True); time.sleep(60)")
    monkeypatch.setattr(sampler_module, "_LATE_S", 0.0)
    kept = []

    def count(self, host, gpus, *, is_kept):
        kept.append(is_kept)
        return original(self, host, gpus, is_kept=is_kept)

    original = RankSampler.count
    monkeypatch.setattr(RankSampler, "count", count)
    path = tmp_path / "rank-00000.counters"
    sampler = Sampler([Target(rank=0, pid=process.pid, gpu=None, path=path)], pytest.fail)
    sampler.start()
    assert wait_for(lambda: len(kept) >= 3)
    sampler.stop()
    assert kept[:3] == [True, False, False]
    tail = BlockTail(path)
    names = [tail.names[name_of(code)] for rows in tail.rows() for code in rows[0].tolist()]
    # the first, and what there was at the end
    assert names.count("resident_bytes") == 2


def test_memory_that_grew_between_two_rows_is_not_lost(python, tmp_path, monkeypatch):
    process = python("import time; print('ready', flush=True); time.sleep(60)")
    path = tmp_path / "rank-00000.counters"
    rank = RankSampler(Target(rank=0, pid=process.pid, gpu=None, path=path), pytest.fail)
    seen = iter([5, 70, 6])
    monkeypatch.setattr(RankSampler, "_count_processes", lambda self, below: {"resident_bytes": next(seen)})
    gpus = SimpleNamespace(read=lambda gpu: {"gpu_busy_percent": 3})
    rank.count({"host_available_bytes": 90}, gpus, is_kept=True)
    rank.count({"host_available_bytes": 10}, gpus, is_kept=False)
    rank.count({"host_available_bytes": 80}, gpus, is_kept=False)
    rank.close()
    tail = BlockTail(path)
    found = [
        (tail.names[name_of(code)], value) for rows in tail.rows() for code, value in zip(rows[0], rows[3], strict=True)
    ]
    assert [value for name, value in found if name == "resident_bytes"] == [5, 70]
    assert [value for name, value in found if name == "host_available_bytes"] == [90, 10]


def test_a_file_that_cannot_be_written_is_noted_and_nothing_raises(python):
    process = python("import time; print('ready', flush=True); time.sleep(60)")
    notes: list[str] = []
    sampler = Sampler([Target(rank=3, pid=process.pid, gpu=None, path=Path("/nowhere/x"))], notes.append)
    sampler.start()
    sampler.stop()
    assert notes == ["rank 3 counters: recording stopped: No such file or directory; training goes on"]
