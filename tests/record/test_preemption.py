"""`should_stop()` in real processes: ranks under DDP stop together, and a lone script hears its own signals."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import REPOSITORY
from tests.launch.jobs import wait_for
from topout.launch.ports import hold_port
from topout.launch.stop_agreement import StopAgreement, obey
from topout.record.preemption import PAGE_VARIABLE, RankStop, StopPage

SCRIPT = REPOSITORY / "tests" / "scripts" / "stops.py"


def lead(pages, draw):
    """A warning, heard by the launchers of several hosts at different times."""
    agreement = StopAgreement(hosts=range(len(pages)))
    orders = [agreement.ask(0.0)]
    while orders:
        order = orders.pop(0)
        for host in draw.sample(range(len(pages)), len(pages)):
            time.sleep(draw.uniform(0, 0.02))
            answer = obey(pages[host], order)
            if answer is not None and (following := agreement.hear(host, order.round, answer)):
                orders.append(following)


def start_ranks(folder, sessions, host_of_rank, port):
    """One process a rank; rank 0 and 1 may share a page, as ranks of one host do."""
    ranks = []
    for rank, host in enumerate(host_of_rank):
        slot = host_of_rank[:rank].count(host)
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(host_of_rank)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "STOPS": json.dumps([pages[host].variable(slot) for pages in sessions]),
            "ANSWERS": str(folder / f"rank-{rank}.json"),
            "OMP_NUM_THREADS": "1",
        }
        with open(folder / f"rank-{rank}.err", "w") as err:
            ranks.append(
                subprocess.Popen(
                    [sys.executable, str(SCRIPT)],
                    env={**os.environ, **variables, "PYTHONPATH": str(REPOSITORY)},
                    pass_fds=[page.fd for pages in sessions for page in pages],
                    stderr=err,
                )
            )
    return ranks


def campaign(folder, num_sessions, host_of_rank, seed):
    draw = random.Random(seed)
    hosts = range(max(host_of_rank) + 1)
    sessions = [[StopPage.create(host_of_rank.count(host)) for host in hosts] for _ in range(num_sessions)]
    holder = hold_port("127.0.0.1")
    ranks = start_ranks(folder, sessions, host_of_rank, holder.getsockname()[1])
    try:
        for pages in sessions:
            assert wait_for(lambda pages=pages: any(sum(page.calls()) for page in pages), 120), "training did not begin"
            time.sleep(draw.uniform(0, 0.03))
            lead(pages, draw)
        codes = [rank.wait(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
        holder.close()
    said = "\n".join((folder / f"rank-{rank}.err").read_text()[-2000:] for rank in range(len(ranks)))
    assert codes == [0] * len(ranks), said
    assert all(page.has_told for pages in sessions for page in pages)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(len(ranks))]


def test_ranks_of_two_hosts_stop_at_the_same_step_under_ddp(tmp_path):
    answers = campaign(tmp_path, 40, [0, 0, 1], seed=3)
    assert len(answers[0]) == 40
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("host_of_rank", [[0, 1], [0, 0], [0, 0, 1, 1], [0, 1, 2, 3]])
def test_two_hundred_warnings_stop_all_ranks_at_the_same_step(tmp_path, host_of_rank):
    answers = campaign(tmp_path, 200, host_of_rank, seed=4)
    assert all(one == answers[0] for one in answers)


def run_python(program, **env):
    clean = {name: value for name, value in os.environ.items() if name not in ("WORLD_SIZE", PAGE_VARIABLE)}
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**clean, "PYTHONPATH": str(REPOSITORY), **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_lone_script_hears_the_warning_itself():
    program = """
import os, signal
from topout.api.preemption import should_stop
print(should_stop())
os.kill(os.getpid(), signal.{name})
print(should_stop())
"""
    for name in ("SIGUSR1", "SIGUSR2"):
        assert run_python(program.format(name=name)).stdout == "False\nTrue\n"


def test_a_handler_of_the_script_stays():
    done = run_python(
        """
import os, signal
from topout.api.preemption import should_stop
signal.signal(signal.SIGUSR1, lambda number, frame: print("mine"))
print(should_stop())
os.kill(os.getpid(), signal.SIGUSR1)
print(should_stop())
"""
    )
    assert done.stdout == "False\nmine\nFalse\n"


def test_a_script_that_never_asks_is_ended_by_the_signal_as_ever():
    done = run_python("import os, signal, topout.api.preemption; os.kill(os.getpid(), signal.SIGUSR1)")
    assert done.returncode == -signal.SIGUSR1


def test_several_ranks_without_a_launcher_are_told_no_and_why():
    done = run_python(
        "import os, signal; from topout.api.preemption import should_stop\n"
        "print(should_stop(), signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL)",
        WORLD_SIZE="2",
    )
    assert done.stdout == "False True\n"
    assert "agree on a step only under topout run" in done.stderr
    assert "<string>:2" in done.stderr, "the warning points at the script"


def test_outside_the_main_thread_it_answers_without_handlers():
    done = run_python(
        "import threading; from topout.api.preemption import should_stop\n"
        "thread = threading.Thread(target=lambda: print(should_stop())); thread.start(); thread.join()"
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_neither_workers_nor_spawned_children_count_as_the_rank():
    page = StopPage.create(1)
    program = """
import os, subprocess, sys
from topout.api.preemption import should_stop
from topout.record.preemption import adopt_page
adopt_page()
should_stop()
if os.fork() == 0:
    should_stop()
    os._exit(0)
os.wait()
subprocess.run([sys.executable, "-c", "from topout.api.preemption import should_stop; should_stop()"], check=True)
should_stop()
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, PAGE_VARIABLE: page.variable(0), "PYTHONPATH": str(REPOSITORY)},
        pass_fds=[page.fd],
        check=True,
    )
    assert done.returncode == 0
    assert page.calls() == [2]


def run_rank(program, page):
    return subprocess.run(
        [sys.executable, "-c", "from topout.record.preemption import adopt_page; adopt_page()\n" + program],
        env={**os.environ, PAGE_VARIABLE: page.variable(0), "PYTHONPATH": str(REPOSITORY)},
        pass_fds=[page.fd],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_warning_that_reaches_a_rank_or_its_children_directly_does_not_end_them():
    done = run_rank(
        """
import os, signal, subprocess
for number in (signal.SIGUSR1, signal.SIGUSR2):
    os.kill(os.getpid(), number)
child = os.fork()
if child == 0:
    os.kill(os.getpid(), signal.SIGUSR1)
    os._exit(7)
print(os.waitstatus_to_exitcode(os.wait()[1]), subprocess.run(["bash", "-c", "kill -USR1 $$; exit 8"]).returncode)
""",
        StopPage.create(1),
    )
    assert (done.stdout, done.returncode) == ("7 8\n", 0), done.stderr


def test_a_script_finds_the_signals_free_and_its_own_handlers_run():
    done = run_rank(
        """
import os, signal
print(signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL)
signal.signal(signal.SIGUSR1, lambda number, frame: print("mine"))
os.kill(os.getpid(), signal.SIGUSR1)
""",
        StopPage.create(1),
    )
    assert done.stdout == "True\nmine\n"


def test_a_rank_whose_launcher_is_gone_does_not_wait_for_a_decision():
    page = StopPage.create(1)
    page.freeze()
    # the shell in the middle plays the launcher and leaves
    program = (
        "import os; from topout.record.preemption import RankStop, PAGE_VARIABLE\n"
        "rank = RankStop.adopt(os.environ[PAGE_VARIABLE])\n"
        "print('ready', flush=True); print(rank.should_stop(), flush=True)"
    )
    shell = subprocess.Popen(
        ["bash", "-c", f'{sys.executable} -c "$PROGRAM" & read line; exit 0'],
        env={**os.environ, PAGE_VARIABLE: page.variable(0), "PYTHONPATH": str(REPOSITORY), "PROGRAM": program},
        pass_fds=[page.fd],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert shell.stdout.readline() == "ready\n"
    assert wait_for(lambda: page.calls() == [1])
    shell.stdin.close()
    assert shell.stdout.readline() == "False\n"
    shell.wait()
    shell.stdout.close()


@pytest.mark.parametrize("text", ["", "nonsense", "0", "999:0", "/no/such/file:0", "page:9", "page:-1", "empty:0"])
def test_what_is_no_page_is_no_page(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    page = StopPage.create(2)
    (tmp_path / "page").write_bytes(os.pread(page.fd, 4096, 0))
    (tmp_path / "empty").touch()
    assert RankStop.adopt(text) is None
    assert RankStop.adopt("page:1") is not None
    (tmp_path / "page").write_bytes(bytes(48))
    assert RankStop.adopt("page:1") is None
