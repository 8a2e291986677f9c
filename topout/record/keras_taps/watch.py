"""What all Keras taps of a rank share: where the script is, and the executions not yet written down.

An execution of one step is written when the recorder flushes, as reading the graph's stamps costs more than a row.
With several steps an execution the stamps are needed at once: they say where each step ended.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident, local

from topout.record.clock import now_ns
from topout.record.keras_taps.execution import Execution, Pull, Step, cut
from topout.record.keras_taps.graph_stamps import GraphStamps, can_stamp
from topout.record.recorder import OFF_MAIN, Recorder
from topout.schema.event import NOT_GIVEN, Kind

_MOST_PENDING = 2_000
"""Executions; the graph's stamps hold several times as many."""
_FIRST_ITERATOR = 1 << 20
"""Numbers of Keras' iterators do not meet those of torch's."""


class Watch:
    """The state of one rank's Keras taps."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.is_fitting = False
        self.sees_phases = True
        """False where torch's taps see them: Keras on torch runs eagerly."""
        self.ends_late = False
        """Train functions return before their step is done (JAX): a step then lasts until the next one begins."""
        self.has_several_steps = False
        """Executions hold more than one step: where each ends must be stamped."""
        self.feeds_by_hand = False
        """The script calls train_on_batch; batches it draws from a tf.data set are its input."""
        self.stamps: GraphStamps | None = None
        self.iterator = _FIRST_ITERATOR - 1
        """Number of the input now in use; a new one for every fit."""
        self._thread = local()
        self._start_ns: int | None = None
        self._executing_thread = 0
        self._is_step_open = False
        self._steps_before = 0
        self._pulls: list[Pull] = []
        self._pending: list[Execution] = []
        self._largest_batch = 0
        self._computed = recorder.code(Kind.BACKWARD, "train_function")
        self._waited = recorder.code(Kind.INPUT)
        recorder.at_pulse.append(self.settle)
        recorder.at_finish.append(self.settle)

    # executions

    @property
    def is_executing(self) -> bool:
        """On this thread: a generator that feeds the training runs on one of TensorFlow's."""
        return self._start_ns is not None and get_ident() == self._executing_thread

    def begin_execution(self) -> None:
        start_ns = now_ns()
        self.close_step(start_ns)
        self._start_ns = start_ns
        self._executing_thread = get_ident()
        self._steps_before = self.recorder.num_steps
        self.recorder.begin_training(start_ns)

    def end_execution(self, num_steps: int, *, ends_step: bool = True) -> None:
        """A train function returned. Steps that another tap has already counted (torch's optimizers) stay counted."""
        if self._start_ns is None:
            return
        is_main = get_ident() == self.recorder.main_thread
        execution = Execution(start_ns=self._start_ns, end_ns=now_ns(), is_on_main_thread=is_main)
        self._start_ns = None
        self._pending.append(execution)
        steps = self._settle() if num_steps > 1 or len(self._pending) >= _MOST_PENDING else []
        step_ends_ns = [step.end_ns for step in steps] if num_steps > 1 and steps else [execution.end_ns]
        if ends_step and self.recorder.num_steps == self._steps_before:
            for end_ns in step_ends_ns[:-1] if self.ends_late else step_ends_ns:
                self.recorder.end_step(end_ns)
            self._is_step_open = self.ends_late

    def close_step(self, end_ns: int) -> None:
        if self._is_step_open:
            self._is_step_open = False
            self.recorder.end_step(end_ns)

    def abandon_execution(self) -> None:
        """It failed, or found no more data."""
        self._start_ns = None

    def leave_fit(self) -> None:
        self.is_fitting = False
        self.abandon_execution()
        self.close_step(now_ns())
        self.settle()

    def pulled(self, start_ns: int, num_samples: int) -> None:
        """Python itself drew a batch, until now."""
        if self.is_executing:
            self._pulls.append(Pull(start_ns=start_ns, end_ns=now_ns(), num_samples=num_samples))
        elif self.feeds_by_hand and not self.is_apart and get_ident() == self.recorder.main_thread:
            self.recorder.span(self._waited, start_ns, num_samples, self.iterator)

    @property
    def is_asking(self) -> bool:
        """A batch is being asked for on this thread: an iterator asks others, and only the first asking counts."""
        return getattr(self._thread, "is_asking", False)

    @is_asking.setter
    def is_asking(self, value: bool) -> None:
        self._thread.is_asking = value

    def started_iterator(self, start_ns: int) -> None:
        self.recorder.span(self._waited, start_ns, 0, self.iterator)

    def make_stamps(self) -> GraphStamps | None:
        """None where the graph cannot be stamped without changing the training."""
        if self.stamps is None and self.recorder.is_active:
            if can_stamp():
                self.stamps = GraphStamps()
            else:
                self.recorder.note("waiting for input is part of the step: TensorFlow is too old to tell them apart")
        return self.stamps

    def settle(self) -> None:
        """Writes down the executions that wait for it."""
        self._settle()

    def _settle(self) -> list[Step]:
        """The steps of the last execution that was waiting."""
        executions, self._pending = self._pending, []
        pulls, self._pulls = self._pulls, []
        step_ends_ns: list[int] = []
        if not executions or not self.sees_phases:
            return []
        if self.stamps is not None:
            stamped, step_ends_ns = self.stamps.read()
            pulls += stamped
        steps: list[Step] = []
        pulls.sort(key=lambda pull: pull.start_ns)
        starts_ns = [pull.start_ns for pull in pulls]
        step_ends_ns.sort()
        for execution in executions:
            own = pulls[bisect_left(starts_ns, execution.start_ns) : bisect_right(starts_ns, execution.end_ns)]
            first = bisect_left(step_ends_ns, execution.start_ns)
            steps = cut(execution, own, step_ends_ns[first : bisect_right(step_ends_ns, execution.end_ns)])
            self._write(execution, steps)
        return steps

    def _write(self, execution: Execution, steps: list[Step]) -> None:
        thread = 0 if execution.is_on_main_thread else OFF_MAIN
        emit = self.recorder.emit
        for step in steps:
            if step.wait is not None:
                wait = step.wait
                emit(
                    (self._waited + thread, wait.start_ns, wait.end_ns - wait.start_ns, wait.num_samples, self.iterator)
                )
                if wait.num_samples > self._largest_batch:
                    self._largest_batch = wait.num_samples
                    self.recorder.fact(batch_size=wait.num_samples)
            compute_ns = step.end_ns - step.compute_start_ns
            emit((self._computed + thread, step.compute_start_ns, compute_ns, NOT_GIVEN, NOT_GIVEN))

    # what does not train

    @property
    def is_apart(self) -> bool:
        """Inside a call that does not train: evaluate, predict, save."""
        return getattr(self._thread, "depth", 0) > 0

    @contextmanager
    def apart(self, kind: Kind, name: str) -> Iterator[None]:
        """A call that evaluates or saves; only the outermost of a thread is a row."""
        start_ns = now_ns()
        depth = getattr(self._thread, "depth", 0)
        self._thread.depth = depth + 1
        try:
            yield
        finally:
            self._thread.depth = depth
            if not depth and not self.recorder.settings.leaves_out(name):
                self.recorder.span(self.recorder.code(kind, name), start_ns)
