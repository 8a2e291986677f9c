import sys
import threading
import time
from pathlib import Path

import pytest

from topout.host import settling

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def named(work) -> threading.Thread:
    """A thread of ours that bears the name of torch's, so that it is waited for."""

    def run() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(settling.THREADS)
        has_name.set()
        work()

    has_name = threading.Event()
    thread = threading.Thread(target=run)
    thread.start()
    has_name.wait()
    return thread


@pytest.mark.alone
def test_a_thread_that_works_is_waited_for() -> None:
    until_s = time.monotonic() + 0.1
    is_over = threading.Event()

    def work() -> None:
        while time.monotonic() < until_s:
            pass
        is_over.wait()

    thread = named(work)
    assert settling.settle()
    assert time.monotonic() >= until_s
    is_over.set()
    thread.join()


@pytest.mark.alone
def test_a_thread_that_sleeps_for_ever_is_not() -> None:
    is_over = threading.Event()
    thread = named(is_over.wait)
    start_s = time.monotonic()
    assert settling.settle()
    assert time.monotonic() - start_s < settling._LIMIT_S
    is_over.set()
    thread.join()


def test_a_thread_that_never_rests_is_given_up() -> None:
    turns = iter(range(10_000))
    assert not settling.settle(lambda: {"7": f"State: R (running) {next(turns)}"})


def test_a_thread_that_wakes_between_two_looks_is_looked_at_again() -> None:
    looks = iter(["S (sleeping) 4", "S (sleeping) 5", "S (sleeping) 5"])
    assert settling.settle(lambda: {"7": next(looks)})
    assert next(looks, None) is None


def test_without_such_threads_nothing_is_waited_for() -> None:
    assert settling.settle(dict)
