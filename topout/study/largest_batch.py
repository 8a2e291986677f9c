"""The largest batch of a rank that fits: doubled until it does not, then the gap is halved down to an eighth.

On a GPU a run that is too large fails and harms nobody. On a CPU it would swap, or be killed with whatever else runs in
the session; so there the memory of the runs that fitted is drawn on in a straight line, and a batch that would need
more than what is safe to take (`host.memory_room`) is not run at all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import gcd, lcm

from topout.schema.errors import ExitCode, TopoutError
from topout.study.scaling_runs import Ended, Say, observe

START = 8
MOST = 1 << 20
"""A batch that needs no memory at all would be doubled for ever."""
FINE = 8
"""The answer is exact to a part of so many."""


@dataclass(frozen=True)
class Trial:
    """How a run of one batch ended."""

    fits: bool
    peak_bytes: int | None = None
    """Of host memory, one rank; None where it trained on a device, whose own limit decides."""
    bound: str = "memory"
    """What kept it from fitting: `memory`, or `data` where a rank has fewer samples."""


@dataclass
class Search:
    """Batches tried so far; `room_bytes` is what one rank may use of the host."""

    trial: Callable[[int], Trial]
    room_bytes: int
    say: Say
    peaks: dict[int, int] = field(default_factory=dict)
    bound: str = "memory"

    def fits(self, size: int) -> bool:
        needed = self.predicted(size)
        if needed is not None and needed > self.room_bytes:
            self.say(f"batch {size:>8}  would need {needed / 1e9:.1f} GB of {self.room_bytes / 1e9:.1f}, not run")
            return False
        found = self.trial(size)
        if found.peak_bytes is not None:
            self.peaks[size] = found.peak_bytes
        if not found.fits:
            self.bound = found.bound
        self.say(f"batch {size:>8}  {'fits' if found.fits else f'does not fit ({found.bound})'}")
        return found.fits

    def predicted(self, size: int) -> float | None:
        """In a straight line through the two largest; what does not grow with the batch is the other part."""
        if len(self.peaks) < 2:
            return None
        (small, low), (large, high) = sorted(self.peaks.items())[-2:]
        return high + max(0.0, (high - low) / (large - small)) * (size - large)


def largest_batch(search: Search) -> int:
    low, high = _bracket(search)
    while high is not None and high - low > max(1, low // FINE):
        middle = (low + high) // 2
        if search.fits(middle):
            low = middle
        else:
            high = middle
    return low


def _bracket(search: Search) -> tuple[int, int | None]:
    """(the largest known to fit, the smallest known not to)."""
    size = START
    if search.fits(size):
        while size < MOST:
            if not search.fits(2 * size):
                return size, 2 * size
            size *= 2
        return size, None
    while size > 1:
        size //= 2
        if search.fits(size):
            return size, 2 * size
    raise TopoutError(
        "Not even a batch of one fits.",
        why="There is too little memory for the model, or a rank has no samples."
        if search.bound == "memory"
        else "A rank has no samples.",
        do="topout run -n 1 --batch 1 SCRIPT, and read what it says of memory",
    )


def judge(ended: Ended, size: int) -> Trial:
    """What a run says of a batch. A failure that is not about memory is an error: another batch would not help."""
    if ended.is_refused and "fewer than a batch" in " ".join(ended.last_lines):
        return Trial(fits=False, bound="data")
    if ended.is_refused:
        raise ended.refusal()
    if ended.folder is None:
        raise _failed(size, ended)
    memory = observe(ended.folder).measures.memory
    if ended.code == ExitCode.FINE:
        return Trial(fits=True, peak_bytes=None if memory.peak_device_bytes else memory.peak_host_bytes)
    if memory.is_out_of_memory:
        return Trial(fits=False)
    raise _failed(size, ended)


def _failed(size: int, ended: Ended) -> TopoutError:
    return TopoutError(
        f"The run with a batch of {size} failed, and not for want of memory.",
        why=" | ".join(line.strip() for line in ended.last_lines) or f"It ended with {ended.code}.",
        do="mend it, or give --batch a number",
        exit_code=ExitCode.JOB_FAILED,
    )


def that_divides(size: int, counts: Sequence[int]) -> int:
    """The largest batch of a rank at the fewest ranks, up to `size`, that every other number of ranks can share."""
    fewest = min(counts)
    unit = lcm(*(count // gcd(count, fewest) for count in counts))
    if size < unit:
        raise TopoutError(
            f"A batch of {size} on {fewest} ranks does not divide among {max(counts)}.",
            why=f"Strong scaling keeps it the same at every point; {unit} a rank would divide.",
            do="fewer --ranks, or --mode weak",
        )
    return size // unit * unit
