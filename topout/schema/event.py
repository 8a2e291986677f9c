"""What happened, on which rank, when: the rows of a recording.

A row is five signed 64-bit integers, so that recording one costs a single append and reading a file is one
`numpy.frombuffer`: `code`, `start_ns`, `duration_ns`, `value`, `ref`. The code packs the kind of the event, its flags
and the number of its name (`pack_code`); `NOT_GIVEN` stands where a column has nothing to say.
"""

from topout.schema.light_enum import IntEnum

COLUMNS = ("code", "start_ns", "duration_ns", "value", "ref")
NOT_GIVEN = -1


class Kind(IntEnum):
    """The kinds of rows, and what `value` and `ref` hold in each."""

    STEP = 1
    """From the end of one optimizer step to the end of the next; with the name `backward`, of one backward to the next.

    ref = step number from 0."""
    INPUT = 2
    """Waiting for the next batch; value = samples in the batch, ref = number of the loader's iterator."""
    COPY = 3
    """A host-to-device copy as the host saw it; value = bytes."""
    BACKWARD = 5
    """One call of backward, exposed communication included; value = nanoseconds of processors that the process used
    meanwhile, all threads together, ref = number of the micro-batch."""
    OPTIMIZER = 6
    """One optimizer's step; ref = number of the optimizer in order of appearance."""
    COLLECTIVE = 7
    """A collective that the script called; name = operation, value = bytes, ref = sequence number in its group."""
    ARRIVAL = 8
    """This rank's arrival at a collective, from the flight recorder; columns as in COLLECTIVE."""
    EVALUATION = 9
    """A phase that evaluates instead of training."""
    CHECKPOINT = 10
    """A save of state to storage; value = bytes written where known."""
    SPAN = 11
    """A stretch the script named itself with `topout.span`."""
    COUNTER = 12
    """A sampled quantity; value = its value at start_ns. Cumulative where its name says so (`COUNTERS`)."""
    LOADER = 13
    """A loader's iterator began; value = its batch size, ref = number of the iterator."""
    DEVICE = 14
    """A phase's time on the accelerator; name = forward, backward or optimizer, with `.queued` where all of its work
    had been launched when it began, with `.dry` for a part before a copy at which nothing was left to do; value = 1
    where nothing was left to do at its end, of a queued one 2 where not all had been launched; ref = step number."""
    MODE = 15
    """The model changed between training and evaluation; value = 1 training, 0 evaluation."""
    COUNT = 16
    """A quantity the script counted itself with `topout.count`; value = the increment."""
    SCHEDULE = 17
    """One run of a pipeline's schedule; name = its class, value = micro-batches, ref = stages of the pipeline."""
    CHUNK = 18
    """A stage's work on a micro-batch; name = forward, backward, weight or reduce, value = micro-batch, ref = stage."""
    NEIGHBOUR = 19
    """Waiting for activations or gradients of a neighbouring stage."""
    PEERS = 20
    """Waiting for a functional collective, as DTensor's; name = operation and group, ref = sequence number in it."""
    CLOSURE = 21
    """One call of the closure that an optimizer's step was given."""


class Flag(IntEnum):
    """What else is true of a row."""

    NONE = 0
    OFF_MAIN_THREAD = 1


_FLAG_SHIFT = 8
_NAME_SHIFT = 16


def pack_code(kind: Kind, name_id: int = 0, flags: Flag = Flag.NONE) -> int:
    return int(kind) | int(flags) << _FLAG_SHIFT | name_id << _NAME_SHIFT


def kind_of(code: int) -> int:
    """Works on one code and on an array of them."""
    return code & 0xFF


def flags_of(code: int) -> int:
    return code >> _FLAG_SHIFT & 0xFF


def name_of(code: int) -> int:
    return code >> _NAME_SHIFT


CUMULATIVE_COUNTERS = frozenset({
    "cpu_ns", "worker_cpu_ns", "system_ns", "worker_system_ns", "page_faults", "read_calls", "write_calls",
    "read_bytes", "write_bytes", "storage_read_bytes", "storage_write_bytes", "file_opens", "directory_scans",
    "network_received_bytes", "network_sent_bytes", "disk_read_bytes", "disk_write_bytes",
    "input_samples_running", "input_samples_opening", "input_samples_reading", "input_samples_waiting",
    "feed_samples", "feed_bytes", "feed_wait_ns", "feed_skipped",
})  # fmt: skip
"""Counters that only grow; the others (`resident_bytes`, `gpu_busy_percent`, …) are levels."""
