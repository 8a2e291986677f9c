"""The input pipeline: how long ranks wait for batches, and what the loader does meanwhile.

Reading and opening hold a loader up as waits in system calls. From a fast disk or the page cache they cost processor
time instead: an open a fixed amount, a read the time its process spends inside the kernel, as far as its bytes
explain it. A loader that spends at least half of its busy time on storage is limited by it: by `iops` when it opens
more than it reads or its files are small, else by `bandwidth`. Where none of its processes computes or touches files
for most of the time that ranks starve, it waits for bytes from outside, such as a network store: `bandwidth`, too.
Otherwise it transforms: `decode`. Not for loops without a DataLoader.
"""

from collections.abc import Mapping

from topout.analyze.counters import total_per_s
from topout.analyze.segments import PHASE
from topout.analyze.steps import Phases
from topout.schema.measures import Input

OPEN_COST_S = 20e-6
"""Assumed processor time of one open, fstat and close from Python."""
COPY_BYTES_PER_S = 1e9
"""Assumed: the kernel hands out at least so many bytes a second; time beyond that is not spent on reading."""
SMALL_FILE_BYTES = 256 * 1024
STORAGE_SHARE = 0.5
IDLE_SHARE = 0.5
"""A loader whose processes together are busy for less than this share of the time in which ranks starve waits for
something outside. Together: one that works may hold up all others, and the rank itself unpacks what they send."""
MIN_STARVING_SHARE = 0.01
"""With less waiting than this nothing limits the input."""
_STATES = ("running", "opening", "reading", "waiting")


def measure_input(phases: Phases, shares: dict[str, float]) -> Input:
    """`shares` are the mean shares of the window."""
    window = (phases.start_ns, phases.start_ns + phases.elapsed_ns)
    rate = {
        name: total_per_s(phases.tables, name, *window)
        for name in (
            "file_opens",
            "directory_scans",
            "read_calls",
            "read_bytes",
            "system_ns",
            "worker_system_ns",
            "cpu_ns",
            "worker_cpu_ns",
        )
    }
    seen = [total_per_s(phases.tables, f"input_samples_{state}", *window) for state in _STATES]
    states = {state: value for state, value in zip(_STATES, seen, strict=True) if value is not None}
    total = sum(states.values())
    num_workers = first_fact(phases, "num_workers")
    input_s_per_s = float(phases.phase_ns[:, :, PHASE["input"]].sum()) / phases.elapsed_ns
    calls, read = rate["read_calls"], rate["read_bytes"]
    num_processes = (num_workers or 1) * len(phases.tables)
    return Input(
        wait_share=shares["input"],
        num_workers=num_workers,
        batch_size=first_fact(phases, "batch_size"),
        opens_per_s=rate["file_opens"],
        directory_scans_per_s=rate["directory_scans"],
        read_calls_per_s=calls,
        read_bytes_per_s=read,
        mean_read_bytes=read / calls if read is not None and calls else None,
        running_share=states["running"] / total if total and "running" in states else None,
        opening_share=states["opening"] / total if total and "opening" in states else None,
        reading_share=states["reading"] / total if total and "reading" in states else None,
        limit=_limit(
            {state: value / total * num_processes for state, value in states.items()} if total else {},
            opens_per_s=rate["file_opens"] or 0.0,
            bytes_per_s=read or 0.0,
            kernel_s=(rate["worker_system_ns" if num_workers else "system_ns"] or 0.0) / 1e9,
            input_s_per_s=input_s_per_s if num_workers == 0 else None,
            is_outside=total > 0
            and waits_outside(1 - states.get("waiting", 0.0) / total, num_workers, shares["input"])
            and _processors_beside_training(rate, shares["input"], len(phases.tables)) < IDLE_SHARE * shares["input"],
        )
        if _starves(phases)
        else None,
    )


def _starves(phases: Phases) -> bool:
    """Whether any rank waits for input; one is enough to hold up all."""
    return bool(phases.phase_ns[:, :, PHASE["input"]].sum(axis=1).max() > MIN_STARVING_SHARE * phases.elapsed_ns)


def waits_outside(busy_share: float, num_workers: int | None, input_share: float) -> bool:
    """Whether all processes of a rank's loader were idle for most of the time in which ranks starved.

    They may be idle for as long as ranks do not starve.
    """
    return busy_share * (num_workers or 1) < IDLE_SHARE * input_share


def _processors_beside_training(rate: Mapping[str, float | None], input_share: float, num_ranks: int) -> float:
    """Processor seconds a second and rank, of workers, threads that transform, and ranks that unpack batches.

    Training takes one processor while there is a batch; what it takes beyond that counts here, on the safe side.
    """
    total = ((rate["cpu_ns"] or 0.0) + (rate["worker_cpu_ns"] or 0.0)) / 1e9 / num_ranks
    return total - (1 - input_share)


def _limit(
    states: dict[str, float],
    *,
    opens_per_s: float,
    bytes_per_s: float,
    kernel_s: float,
    input_s_per_s: float | None,
    is_outside: bool,
) -> str:
    """All figures are seconds a second, over all processes.

    `input_s_per_s` is the ranks' time in input where they load themselves; workers have their own busy time.
    """
    if is_outside:
        return "bandwidth"
    if not opens_per_s and not bytes_per_s:
        return "decode"
    blocked_opening_s, blocked_reading_s = states.get("opening", 0.0), states.get("reading", 0.0)
    opening_s = blocked_opening_s + opens_per_s * OPEN_COST_S
    reading_s = blocked_reading_s + min(kernel_s, bytes_per_s / COPY_BYTES_PER_S)
    busy_s = states.get("running", 0.0) + blocked_opening_s + blocked_reading_s
    if input_s_per_s is not None:
        busy_s = max(blocked_opening_s + blocked_reading_s, input_s_per_s)
    if opening_s + reading_s < STORAGE_SHARE * busy_s or busy_s == 0:
        return "decode"
    is_small = bool(opens_per_s) and bytes_per_s / opens_per_s < SMALL_FILE_BYTES
    return "iops" if opening_s > reading_s or is_small else "bandwidth"


def first_fact(phases: Phases, name: str) -> int | None:
    """Of the first rank that knows it."""
    values = [table.facts.get(name) for table in phases.tables]
    return next((value for value in values if isinstance(value, int)), None)
