"""Ranks forked from a process that has loaded torch: without its 3 s of loading most tests of training take a third.

    process = Preloaded(variables).start([script, "--flag"], folder, variables)
    stdout, stderr = process.communicate(timeout=60)

Run as a program it is that process. One serves the ranks of one parity, so that texts hash otherwise on the others, as
in processes of their own. Not for what must happen before torch is there, nor for ranks that a test kills.
"""

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType

_LARGEST_REQUEST = 1 << 20


class ForkedRank:
    """As much of a Popen as whoever waits for a rank needs."""

    def __init__(self, words: Sequence[str], out_fd: int, err_fd: int, status_fd: int) -> None:
        self.args = [sys.executable, *words]
        self.returncode: int | None = None
        self._status = os.fdopen(status_fd)
        self._said: dict[str, str] = {}
        self._readers = [self._reader("stdout", out_fd), self._reader("stderr", err_fd)]
        self.pid = int(self._status.readline())

    def communicate(self, timeout: float) -> tuple[str, str]:
        give_up_at = time.monotonic() + timeout
        for reader in self._readers:
            reader.join(max(0.0, give_up_at - time.monotonic()))
        if any(reader.is_alive() for reader in self._readers) or not self._has_ended(give_up_at):
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self._said["stdout"], self._said["stderr"]

    def kill(self) -> None:
        """Nothing where it has ended."""
        if self.returncode is None and not self._has_ended(0):
            os.kill(self.pid, signal.SIGKILL)

    def _has_ended(self, give_up_at: float) -> bool:
        left_s = max(0.0, give_up_at - time.monotonic())
        if self.returncode is None and select.select([self._status], [], [], left_s)[0]:
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode is not None

    def _reader(self, name: str, fd: int) -> threading.Thread:
        def read() -> None:
            with os.fdopen(fd) as pipe:
                self._said[name] = pipe.read()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        return reader


class Preloaded:
    """The other process; it ends with this one."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            words = [sys.executable, __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(words, env=variables, pass_fds=[theirs.fileno()])

    def start(self, words: Sequence[str], folder: Path, variables: Mapping[str, str]) -> ForkedRank:
        pipes = [os.pipe() for _ in range(3)]
        request = {"words": list(words), "folder": str(folder), "variables": dict(variables)}
        socket.send_fds(self._requests, [json.dumps(request).encode()], [theirs for _, theirs in pipes])
        for _, theirs in pipes:
            os.close(theirs)
        return ForkedRank(words, *(own for own, _ in pipes))

    def close(self) -> None:
        self._requests.close()
        self._process.wait()


# ---- the other process


def load() -> None:
    import numpy  # noqa: F401
    import torch
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.nn.parallel
    import torch.utils.data

    # the first one loads what may compile
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    assert len(os.listdir("/proc/self/task")) == 1, "a thread would be missing in what is forked"
    gc.freeze()


def serve(requests: socket.socket) -> list[str]:
    """Returns in a rank alone: its words."""
    woken, wake = os.pipe()
    for fd in (woken, wake):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, _nothing)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    status_fds: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([requests, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _tell_ends(status_fds)
        if requests not in ready:
            continue
        data, fds, _, _ = socket.recv_fds(requests, _LARGEST_REQUEST, 3)
        if not data:
            for pid in status_fds:
                os.kill(pid, signal.SIGKILL)
            sys.exit(0)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in (woken, wake, fds[2], *status_fds.values()):
                os.close(fd)
            requests.close()
            return _become(json.loads(data), *fds[:2])
        status_fds[pid] = fds[2]
        os.write(fds[2], b"%d\n" % pid)
        for fd in fds[:2]:
            os.close(fd)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Wakes the loop."""


def _tell_ends(status_fds: dict[int, int]) -> None:
    while status_fds:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        fd = status_fds.pop(pid)
        try:
            os.write(fd, b"%d\n" % os.waitstatus_to_exitcode(status))
        except BrokenPipeError:
            pass
        os.close(fd)


def _become(request: dict, out_fd: int, err_fd: int) -> list[str]:
    import numpy

    os.dup2(out_fd, 1)
    os.dup2(err_fd, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for fd in (out_fd, err_fd):
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["variables"])
    os.chdir(request["folder"])
    # Python's own random numbers are drawn anew by Python
    numpy.random.seed()
    return request["words"]


def main() -> None:
    requests = socket.socket(fileno=int(sys.argv[1]))
    load()
    words = serve(requests)
    sys.argv[:] = words
    sys.path[0] = str(Path(words[0]).parent)
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__file__ = words[0]
    exec(compile(Path(words[0]).read_bytes(), words[0], "exec", dont_inherit=True), module.__dict__)


if __name__ == "__main__":
    main()
