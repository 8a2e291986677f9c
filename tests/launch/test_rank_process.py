"""A rank's first moments, in which it is its launcher's child and not yet a session of its own."""

import os
import signal

from tests.launch.jobs import state, wait_for
from topout.launch.becoming import fork_rank
from topout.launch.rank_process import RankProcess
from topout.launch.signals import LauncherSignals
from topout.launch.stop_agreement import catches
from topout.schema.world import Rank

RANK = Rank(rank=0, local_rank=0, node_rank=0, host="n1", cores=(), num_threads=1)


def test_a_child_that_leads_no_group_yet_is_reached(monkeypatch):
    monkeypatch.setattr(
        "topout.launch.rank_process._exec",
        lambda command, *_, **__: os.spawnvp(os.P_NOWAIT, command[0], command),
    )
    process = RankProcess(RANK, ["sleep", "60"], lambda fd: {})
    process.pass_on(signal.SIGSTOP)
    assert wait_for(lambda: state(process.pid) == "T", 5)
    process.tell(signal.SIGKILL)
    assert wait_for(process.reap, 5)
    assert process.death_signal == signal.SIGKILL
    process.close()


def test_a_child_whose_launcher_died_first_does_not_outlive_it(monkeypatch):
    monkeypatch.setattr(os, "getppid", lambda: 1)
    process = RankProcess(RANK, ["sleep", "60"], lambda fd: dict(os.environ))
    assert wait_for(process.reap, 5)
    assert process.death_signal == signal.SIGKILL
    process.close()


def test_the_launchers_own_handlers_are_not_taken_for_the_scripts(monkeypatch):
    """A warning that was passed on then would be lost, or end the child that has just dropped them."""
    told_fd, tell_fd = os.pipe()
    fork = os.fork

    def tell(text: str) -> None:
        os.write(tell_fd, f"{text} {catches(os.getpid(), signal.SIGUSR1)}, ".encode())

    def fork_and_tell() -> int:
        pid = fork()
        if pid == 0:
            tell("forked")
        return pid

    def prepare() -> None:
        tell(f"{signal.getsignal(signal.SIGUSR1).name} {signal.pthread_sigmask(signal.SIG_BLOCK, [])}")
        os._exit(0)

    monkeypatch.setattr(os, "fork", fork_and_tell)
    with LauncherSignals():
        pid = fork_rank([], {}, out_fd=1, err_fd=2, kept_fds=(), keeps_stdin=True, prepare=prepare)
        assert catches(os.getpid(), signal.SIGUSR1)
    os.waitpid(pid, 0)
    assert os.read(told_fd, 1000) == b"forked False, SIG_IGN set() False, "
    os.close(told_fd)
    os.close(tell_fd)
