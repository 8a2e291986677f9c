"""One thread with a process group of its own, on which exchanges of several collectives run one after the other.

Collectives issued from callbacks of futures come in whatever order buckets happen to finish, which need not be the same
on all ranks. (torch's powerSGD_hook issues them so, and fails with several buckets on Gloo.) DDP hands buckets over in
the same order on all ranks, and here they stay in it.

    lane.submit(lambda: exchange(bucket))      # a future of the bucket's buffer, for DDP to wait for

Not for one single collective: that one DDP's own group takes in order, without a thread.
"""

import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from topout.schema.errors import ExitCode, TopoutError
from topout.train.place import Place

Job = Callable[[], Tensor]
_LONGEST_END_S = 5.0
"""Of an exchange that was under way when the last holder let go: another rank may be gone."""
gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""All-gather of one tensor into one; torch 2.13 calls it by the first name and warns of the second."""


class Lane:
    """All ranks make one together, for its group is new."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._is_cuda = place.device.type == "cuda"
        self._device = place.device
        if self._is_cuda and place.device.index is None:
            # a future of a device wants to know which
            self._device = torch.device("cuda", torch.cuda.current_device())
        self.group: Any = None
        self.other_groups: list[Any] = []
        """Groups that jobs use besides; a failure leaves them as well."""
        self._stream: Any = None
        if place.world_size > 1:
            self.group = dist.new_group() if self._is_cuda else place.side_group()
        if self._is_cuda:
            self._stream = torch.cuda.Stream(self._device)
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failure: TopoutError | None = None

    def submit(self, job: Job, *, done: Callable[[int], None] = lambda busy_ns: None) -> torch.futures.Future[Tensor]:
        """`done` is told how long the job ran."""
        if self._thread is None:
            self._start()
        future: Any = torch.futures.Future(devices=[self._device]) if self._is_cuda else torch.futures.Future()
        ready = torch.cuda.current_stream(self._device).record_event() if self._is_cuda else None
        failures: list[TopoutError] = []

        def run() -> None:
            buffer = self._run(job, ready, failures, done)
            self._complete(future, buffer)

        def deliver(completed: torch.futures.Future[Tensor]) -> Tensor:
            # the reducer, in C++, sees an exception only where a callback raises it, not by Future.set_exception
            if failures:
                raise failures[0]
            return completed.value()

        delivered = future.then(deliver)
        self._jobs.put(run)
        return delivered

    def _start(self) -> None:
        # the thread knows the queue alone, so a lane that nobody holds any more ends it
        self._thread = threading.Thread(target=_serve, args=(self._jobs,), name="topout-lane", daemon=True)
        self._thread.start()
        # at the latest before Python ends: it would stop the thread inside torch, which ends the process with an abort
        weakref.finalize(self, _end, self._jobs, self._thread)

    def _run(self, job: Job, ready: Any, failures: list[TopoutError], done: Callable[[int], None]) -> Tensor:
        begun_ns = time.perf_counter_ns()
        try:
            if self._failure is not None:
                raise self._failure
            if not self._is_cuda:
                buffer = job()
            else:
                torch.cuda.set_device(self._device)
                with torch.cuda.stream(self._stream):
                    self._stream.wait_event(ready)
                    buffer = job()
                    buffer.record_stream(self._stream)
        except Exception as error:
            failures.append(self._fail(error))
            return torch.empty(0)
        done(time.perf_counter_ns() - begun_ns)
        return buffer

    def _complete(self, future: Any, buffer: Tensor) -> None:
        if not self._is_cuda:
            future.set_result(buffer)
            return
        # completing on the lane's stream makes whoever waits for the future wait for that stream
        with torch.cuda.stream(self._stream):
            future.set_result(buffer)

    def _fail(self, error: Exception) -> TopoutError:
        """Leaves the group, so that ranks waiting in it see a closed connection now, not a timeout in half an hour."""
        if self._failure is not None:
            return self._failure
        self._failure = TopoutError(
            f"Compressed gradients could not be exchanged on rank {self.place.rank}: {error}",
            why=f"{type(error).__name__} here, or another rank ended or failed; its own message then comes first",
            do="look for the first rank that failed; topout run names it",
            exit_code=ExitCode.JOB_FAILED,
        )
        self._failure.__cause__ = error
        groups = [group for group in (self.group, *self.other_groups) if group is not None]
        self.group, self.other_groups = None, []
        for group in groups:
            try:
                dist.destroy_process_group(group)
            except Exception as second:
                self._failure.add_note(f"leaving a group failed as well: {second}")
        return self._failure


def _end(jobs: "queue.SimpleQueue[Callable[[], None] | None]", thread: threading.Thread) -> None:
    jobs.put(None)
    if thread is not threading.current_thread():
        thread.join(_LONGEST_END_S)


def _serve(jobs: "queue.SimpleQueue[Callable[[], None] | None]") -> None:
    while (job := jobs.get()) is not None:
        job()
        del job
