"""Stamps inside TensorFlow's graph: when a compiled train function asked for a batch, when it came, when a step ended.

Keras compiles the asking into the train function, where Python sees nothing of it. Around the operation that asks two
reads of the clock are added while the function is traced; what they read is kept in a small variable of ours. The
batch passes through an identity that waits for the second read, or an executor with few threads would read the clock
after the step. No number of the training is touched, and nothing waits for us.

Not where random operations count the operations of their graph for a seed (TensorFlow before that was changed): there
one operation more would change the training, and the wait stays part of the step.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from topout.record.clock import clock_pair
from topout.record.keras_taps.execution import Pull

_ROWS = 16_384
"""Kept until read; an execution of more steps than that loses its first ones."""
_NS = 1_000_000_000


def can_stamp() -> bool:
    return hasattr(import_module("tensorflow.python.framework.random_seed"), "_graph_to_seed_dict")


class GraphStamps:
    """What one process stamps. Made while the first train function is traced, when TensorFlow is set up for sure."""

    def __init__(self) -> None:
        self._tf: Any = import_module("tensorflow")
        self._ops: Any = import_module("tensorflow.python.framework.ops")
        self._pulls = _Ring(self._tf, num_columns=3)
        self._ends = _Ring(self._tf, num_columns=1)

    def around(self, ask: Callable[[], Any], on_failure: Callable[[Exception], None]) -> Any:
        """Traces `ask` between two stamps; `ask` itself fails as it would without us."""
        tf = self._tf
        try:
            start = tf.timestamp()
        except Exception as error:
            on_failure(error)
            return ask()
        with tf.control_dependencies([start]):
            batch = ask()
        try:
            return self._arrived(start, batch)
        except Exception as error:
            on_failure(error)
            return batch

    def step_ended(self, outputs: Any) -> None:
        """To be traced where a step's outputs are at hand; a control edge waits for its variables as well."""
        tf = self._tf
        with tf.control_dependencies(tf.nest.flatten(outputs, expand_composites=True)):
            self._ends.append([tf.timestamp()])

    def read(self) -> tuple[list[Pull], list[int]]:
        """Pulls, and ends of steps, since the last reading; on the recording's clock."""
        monotonic_ns, epoch_ns = clock_pair()
        shift_ns = monotonic_ns - epoch_ns
        pulls = [
            Pull(start_ns=_ns(start) + shift_ns, end_ns=_ns(end) + shift_ns, num_samples=int(samples))
            for start, end, samples in self._pulls.read()
        ]
        return pulls, [_ns(end) + shift_ns for (end,) in self._ends.read()]

    def _arrived(self, start: Any, batch: Any) -> Any:
        tf = self._tf
        with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
            end = tf.timestamp()
        with tf.control_dependencies([end]):
            passed = tf.nest.map_structure(self._pass_on, batch, expand_composites=True)
        self._pulls.append([start, end, tf.cast(self._num_samples(passed), tf.float64)])
        return passed

    def _pass_on(self, tensor: Any) -> Any:
        # on the device where the batch is: anywhere else would be a copy
        with self._ops.colocate_with(tensor):
            return self._tf.identity(tensor)

    def _num_samples(self, batch: Any) -> Any:
        """Over the devices of this process; an optional batch without a value has none."""
        tf = self._tf
        parts = batch if isinstance(batch, list) else [batch]
        return tf.add_n([self._num_samples_of(part) for part in parts])

    def _num_samples_of(self, part: Any) -> Any:
        tf = self._tf
        if isinstance(part, tf.experimental.Optional):
            return tf.cond(part.has_value(), lambda: self._length(part.get_value()), lambda: tf.constant(0))
        return self._length(part)

    def _length(self, structure: Any) -> Any:
        tf = self._tf
        first = tf.nest.flatten(structure, expand_composites=True)[0]
        return tf.constant(-1) if first.shape.rank in (None, 0) else tf.shape(first)[0]


def _ns(epoch_s: float) -> int:
    """A float of seconds is good to a quarter of a microsecond."""
    return int(epoch_s * _NS)


class _Ring:
    """Rows of numbers that a graph writes and Python reads; the oldest give way. One writer at a time."""

    def __init__(self, tf: Any, num_columns: int) -> None:
        variables: Any = import_module("tensorflow.python.ops.resource_variable_ops")
        numpy: Any = import_module("numpy")
        self._tf = tf
        self._num_read = 0
        # made directly: tf.Variable would ask the script's strategy, and mirror it
        with tf.init_scope(), tf.device("/CPU:0"):
            self._rows = variables.ResourceVariable(numpy.zeros((_ROWS, num_columns)), trainable=False)
            self._count = variables.ResourceVariable(numpy.int64(0), trainable=False)

    def append(self, row: list[Any]) -> None:
        tf = self._tf
        with tf.device("/CPU:0"):
            values = tf.stack(row)
            # the place is taken only when there is something to write there; counted from 1, to save a subtraction
            with tf.control_dependencies([values]):
                place = self._count.assign_add(1, read_value=True) % _ROWS
            self._rows.scatter_update(tf.IndexedSlices(values, place))

    def read(self) -> list[list[float]]:
        tf = self._tf
        with tf.device("/CPU:0"):
            total = int(self._count.read_value().numpy())
            first, self._num_read = max(self._num_read, total - _ROWS), total
            if first == total:
                return []
            places = [(number + 1) % _ROWS for number in range(first, total)]
            rows: list[list[float]] = self._rows.sparse_read(tf.constant(places, tf.int64)).numpy().tolist()
            return rows
