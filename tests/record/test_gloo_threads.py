"""Gloo's receiving threads give way to its senders, in every kind of group and only there."""

import os
import subprocess
import sys
import threading
from types import ModuleType

import pytest

from topout.launch.ports import hold_port
from topout.record import gloo_threads

SCRIPT = """
import os, sys
import torch.distributed as dist

dist.init_process_group("gloo")
dist.new_group()
classes = {}
for task in os.listdir("/proc/self/task"):
    with open(f"/proc/self/task/{task}/comm") as file:
        classes.setdefault(file.read().strip(), []).append(os.sched_getscheduler(int(task)))
print("CLASSES", sorted(classes["gloo_tcp_loop"]), sorted(set(classes["pt_gloo_runloop"])), flush=True)
dist.destroy_process_group()
"""
BATCH = f"CLASSES {[os.SCHED_BATCH] * 2} {[os.SCHED_OTHER]}"
AS_TORCH_MAKES_THEM = f"CLASSES {[os.SCHED_OTHER] * 2} {[os.SCHED_OTHER]}"


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.alone
@pytest.mark.parametrize("options", [(), ("--no-record",)])
def test_receivers_of_all_groups_give_way_and_senders_do_not(run_topout, script, options):
    done = run_topout(["run", "-n", 2, "--no-report", *options, script])
    assert done.code == 0, done.stderr
    assert BATCH in done.stdout


def test_the_variable_leaves_them_as_torch_made_them(run_topout, script):
    done = run_topout(["run", "-n", 2, "--no-report", script], env={"TOPOUT_GLOO_THREADS": "normal"})
    assert done.code == 0, done.stderr
    assert AS_TORCH_MAKES_THEM in done.stdout


@pytest.mark.alone
@pytest.mark.parametrize("join", ["topout.init()", "dist.init_process_group('gloo'); topout.init()"])
def test_groups_of_a_script_that_calls_topout_itself(tmp_path, join):
    """Whether topout joins the ranks or finds them joined; the group made after it is one of those, too."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace('dist.init_process_group("gloo")', f"import topout; {join}"))
    with hold_port("127.0.0.1") as held:
        world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(held.getsockname()[1])}
        ranks = [
            subprocess.Popen(
                [sys.executable, path],
                env=os.environ | world | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        for rank in ranks:
            said, _ = rank.communicate(timeout=120)
            assert rank.returncode == 0
            assert BATCH in said


def test_a_torch_without_that_function_is_left_alone():
    module = ModuleType("distributed_c10d")
    gloo_threads.install(module)
    assert not hasattr(module, "_new_process_group_helper")


def test_it_is_installed_once_and_gives_back_what_was_made():
    module = ModuleType("distributed_c10d")
    module._new_process_group_helper = lambda name, *, size: (name, size)
    gloo_threads.install(module)
    installed = module._new_process_group_helper
    gloo_threads.install(module)
    assert module._new_process_group_helper is installed
    assert installed("group", size=3) == ("group", 3)


def test_a_rank_outside_the_new_group_does_not_wait(monkeypatch):
    def wait(_):
        raise AssertionError("there is nothing to wait for")

    module = ModuleType("distributed_c10d")
    module._new_process_group_helper = lambda size, rank, ranks, backend: None
    gloo_threads.install(module)
    monkeypatch.setattr(gloo_threads.time, "sleep", wait)
    assert module._new_process_group_helper(2, 0, [1], "gloo") is None


@pytest.mark.alone
def test_a_receiver_without_a_name_is_known_by_its_start(tmp_path):
    """As in torch 2.11, where the thread is called what its maker is called; threads of Python's are not meant."""
    path = tmp_path / "threads.py"
    path.write_text("""
import _thread, os, threading, time
from types import ModuleType
from topout.record import gloo_threads

started = []

def live(named):
    if named:
        time.sleep(0.01)
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as file:
            file.write(named)
    started.append(threading.get_native_id())
    time.sleep(30)

def make(size, rank, ranks, backend, **kwargs):
    _thread.start_new_thread(live, (None,))
    _thread.start_new_thread(live, ("pt_gloo_runloop",))
    python = threading.Thread(target=live, args=(None,), daemon=True)
    python.start()
    while len(started) % 3:
        time.sleep(0.01)
    return python.native_id

module = ModuleType("distributed_c10d")
module._new_process_group_helper = make
gloo_threads.install(module)
for backend in ("gloo", "cpu:gloo,cuda:nccl", "nccl"):
    before = set(started)
    of_python = module._new_process_group_helper(1, 0, [], backend)
    new = set(started) - before
    print(backend, sorted(os.sched_getscheduler(thread) for thread in new), os.sched_getscheduler(of_python))
os._exit(0)
""")
    done = subprocess.run([sys.executable, "-u", path], check=False, capture_output=True, text=True, timeout=60)
    other, batch = os.SCHED_OTHER, os.SCHED_BATCH
    assert done.stdout.splitlines() == [
        f"gloo {[other, other, batch]} {other}",
        f"cpu:gloo,cuda:nccl {[other, other, batch]} {other}",
        f"nccl {[other] * 3} {other}",
    ], done.stderr


def test_a_kernel_that_refuses_stops_nothing(monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    assert gloo_threads._into_batch([threading.get_native_id()]) == 0


def test_a_thread_that_has_ended_stops_nothing():
    no_thread = 1 << 30
    assert gloo_threads._into_batch([no_thread]) == 0
