"""Where each rank's time went, step by step: the table that all other analyses reduce.

The window runs from where the last rank begins the first steady step to where the last rank has nothing more to do,
and it is the same stretch of time for all ranks. So the first step is cut where the window begins, and the last one
reaches to the window's end: a last evaluation belongs to it, and a rank that has finished waits there for the others.
Every rank's durations add up to the window, and the phases of a step to its duration, exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from topout.analyze.accelerator import device_ns, on_device, runs_ahead
from topout.analyze.collectives import Blocked, find_blocked
from topout.analyze.evaluations import computes_unseen, find_evaluations, trails_off
from topout.analyze.pipeline import Chunks, find_chunks
from topout.analyze.segments import PHASE, Segments, Stretches, cut, paint
from topout.record.row_names import LIFE_BITS
from topout.schema.event import Kind
from topout.schema.measures import COMMUNICATION_PHASES
from topout.schema.run_folder import RunFolder
from topout.trace.clocks import Aligned, align
from topout.trace.readers.topout import read_run
from topout.trace.table import Int64s, RankTable
from topout.trace.told_steps import has_steps_by_backward
from topout.trace.window import common_steps, num_warmup_steps

_FIRST_SEQUENCES = 8
"""A flight recorder whose oldest entry has a higher number than this has already forgotten the beginning."""

_FEWEST_STEPS = 5
"""Profiled steps are left out only when at least so many others remain."""

Stamp = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, kw_only=True)
class Phases:
    """Ranks x steps x phases of the common window."""

    tables: list[RankTable]
    steps: Int64s
    edges_ns: Int64s
    """[ranks, steps + 1], on the common clock"""
    phase_ns: Int64s
    """[ranks, steps, PHASES]"""
    segments: list[Segments]
    """Of each rank's whole recording, as its host saw it."""
    first_ns: Int64s
    """[ranks]: where each began the first of these steps; all but the last rank did so before the window."""
    tail_ns: Int64s
    """[ranks]: how much of the last step lies after its optimizer step."""
    num_warmup_steps: int
    skew_ns: float | None
    is_split_withheld: bool
    starts_late: bool
    """Earlier steps were left out because nobody remembers when ranks arrived in them."""

    @property
    def duration_ns(self) -> Int64s:
        return np.diff(self.edges_ns, axis=1)

    @property
    def start_ns(self) -> int:
        return int(self.edges_ns[0, 0])

    @property
    def elapsed_ns(self) -> int:
        return int(self.edges_ns[0, -1] - self.edges_ns[0, 0])

    @property
    def own_ns(self) -> Int64s:
        """[ranks, 2]: each rank's own stretch of these steps, which holds all that it did for them and nothing else."""
        return np.stack([self.first_ns, self.edges_ns[:, -1] - self.tail_ns], axis=1)

    @property
    def exposed_ns(self) -> Int64s:
        """[ranks, steps]: communication that nothing hides."""
        exposed_ns: Int64s = self.phase_ns[:, :, [PHASE[name] for name in COMMUNICATION_PHASES]].sum(axis=2)
        return exposed_ns

    @property
    def busy_ns(self) -> Int64s:
        """[ranks, steps]: until a rank had nothing left to do but wait for others or for the wire."""
        return self.duration_ns - self.exposed_ns


def read_tables(folder: RunFolder) -> list[RankTable]:
    """The recordings of a run, each on its own clock; read again only when the files have changed."""
    return _tables_as_of(folder, _stamp(folder))


def read_phases(folder: RunFolder) -> Phases | None:
    """The phases of a recorded run; None when no step was completed by all ranks."""
    return _phases_as_of(folder, _stamp(folder))


# A report asks for the arrays of the run that was just measured.
@lru_cache(maxsize=1)
def _tables_as_of(folder: RunFolder, _stamp: Stamp) -> list[RankTable]:
    return read_run(folder)


@lru_cache(maxsize=1)
def _phases_as_of(folder: RunFolder, stamp: Stamp) -> Phases | None:
    return find_phases(align([table for table in _tables_as_of(folder, stamp) if has_steps(table)]))


def _stamp(folder: RunFolder) -> Stamp:
    """What changes when a recording does."""
    paths = [path for rank in folder.ranks_recorded() for path in (folder.events(rank), folder.counters(rank))]
    stats = [(path, path.stat()) for path in paths if path.exists()]
    return tuple((path.name, stat.st_size, stat.st_mtime_ns) for path, stat in stats)


def has_steps(table: RankTable) -> bool:
    return len(table.rows(Kind.STEP)) > 0


def find_phases(aligned: Aligned) -> Phases | None:
    """Of tables that all have steps."""
    tables = aligned.tables
    numbers, edges_ns = common_steps(tables)
    if len(numbers) == 0:
        return None
    ends_ns = [_end_of_work(table) for table in tables]
    segments = [
        _segments(table, blocked, end_ns)
        for table, blocked, end_ns in zip(tables, find_blocked(tables), ends_ns, strict=True)
    ]
    first = num_warmup_steps(_training_ns(segments, edges_ns))
    remembered = min(_first_remembered(tables, edges_ns), len(numbers) - 1)
    starts_late = remembered > first
    num_warmup = max(first, remembered)
    first, stop = _unprofiled(tables, numbers, num_warmup)
    steps = numbers[first:stop]
    is_at_end = [int(table.ref[table.rows(Kind.STEP)[-1]]) == steps[-1] for table in tables]
    window, tail_ns = _one_stretch(edges_ns[:, first : stop + 1], np.where(is_at_end, ends_ns, edges_ns[:, stop]))
    if window[0, -1] <= window[0, 0]:
        return None
    phase_ns = np.stack(
        [_cut_rank(table, own, steps, edges) for table, own, edges in zip(tables, segments, window, strict=True)]
    )
    is_withheld = _is_split_withheld(phase_ns, aligned.skew_ns)
    if is_withheld:
        phase_ns[:, :, PHASE["transfer"]] += phase_ns[:, :, PHASE["wait"]]
        phase_ns[:, :, PHASE["wait"]] = 0
    return Phases(
        tables=tables,
        steps=steps,
        edges_ns=window,
        phase_ns=phase_ns,
        first_ns=edges_ns[:, first],
        segments=segments,
        tail_ns=tail_ns,
        num_warmup_steps=num_warmup,
        skew_ns=aligned.skew_ns,
        is_split_withheld=is_withheld,
        starts_late=starts_late,
    )


def _one_stretch(edges_ns: Int64s, ends_ns: Int64s) -> tuple[Int64s, Int64s]:
    """Edges that begin and end at the same times on all ranks, and how far each rank's last step was stretched."""
    window = np.maximum(edges_ns, edges_ns[:, 0].max())
    last_ns = max(int(ends_ns.max()), int(window[:, -1].max()))
    tail_ns = last_ns - window[:, -1]
    window[:, -1] = last_ns
    return window, tail_ns


def _end_of_work(table: RankTable) -> int:
    return trails_off(table, int(table.end_ns[table.rows(Kind.STEP)].max()))


def _segments(table: RankTable, blocked: Blocked, end_ns: int) -> Segments:
    """Later layers win: what waits for another rank is waiting wherever it happens, also inside an evaluation."""
    steps = table.rows(Kind.STEP)
    evaluations = find_evaluations(table, end_ns)
    saves = _rows(table, Kind.CHECKPOINT)
    unseen = _rows(table, Kind.STEP) if computes_unseen(table) else Stretches.none()
    chunks: Chunks = find_chunks(table)
    return paint(
        int(table.start_ns[steps[0]]),
        end_ns,
        [
            ("forward", unseen),
            ("optimizer", _updates(table)),
            ("optimizer", _rows(table, Kind.OPTIMIZER)),
            ("forward", _forwards(table, evaluations)),
            ("input", _rows(table, Kind.INPUT, Kind.LOADER)),
            ("backward", _rows(table, Kind.BACKWARD)),
            ("forward", chunks.schedule),
            ("bubble", chunks.bubble),
            ("forward", chunks.forward),
            ("backward", chunks.backward),
            ("copy", _rows(table, Kind.COPY)),
            ("transfer", blocked.transfer),
            ("tensor", blocked.tensor),
            ("evaluation", evaluations),
            ("checkpoint", saves),
            ("wait", blocked.wait),
        ],
    )


def _rows(table: RankTable, *kinds: Kind) -> Stretches:
    rows = table.rows(*kinds)
    return Stretches(table.start_ns[rows], table.end_ns[rows])


def _updates(table: RankTable) -> Stretches:
    """In a loop without torch.optim: what follows a backward, up to the next batch, is taken for the update.

    Where the script makes its batches itself nothing tells the update from the forward after it.
    """
    if not has_steps_by_backward(table):
        return Stretches.none()
    ends_ns = table.end_ns[table.rows(Kind.STEP)]
    nexts_ns = table.start_ns[table.rows(Kind.INPUT, Kind.LOADER, Kind.CHECKPOINT, Kind.MODE)]
    place = np.searchsorted(nexts_ns, ends_ns)
    is_known = place < len(nexts_ns)
    return Stretches(ends_ns[is_known], nexts_ns[place[is_known]])


def _forwards(table: RankTable, evaluations: Stretches) -> Stretches:
    """What ends where a backward begins and starts where the last row before it ended.

    Copies and collectives do not start it anew: they happen in the middle of a forward (SyncBatchNorm, targets to the
    device) and are painted over it. An optimizer that evaluates a closure has its forwards inside its own row,
    each from the call on.
    """
    backward_ns = table.start_ns[table.rows(Kind.BACKWARD)]
    before = _rows(table, Kind.STEP, Kind.INPUT, Kind.BACKWARD, Kind.OPTIMIZER, Kind.CHECKPOINT).end_ns
    opens = _rows(table, Kind.STEP, Kind.OPTIMIZER, Kind.CLOSURE).start_ns
    bounds = np.sort(np.concatenate([before, opens, evaluations.end_ns]))
    place = np.searchsorted(bounds, backward_ns, side="right") - 1
    is_known = place >= 0
    return Stretches(bounds[place[is_known]], backward_ns[is_known])


def _training_ns(segments: Sequence[Segments], edges_ns: Int64s) -> Int64s:
    """[steps]: the slowest rank's time without evaluation, checkpoint and waiting, which would hide the warm-up."""
    aside = [PHASE[name] for name in ("evaluation", "checkpoint", "wait", "bubble", "tensor")]
    per_rank = [
        np.delete(cut(own, edges), aside, axis=1).sum(axis=1) for own, edges in zip(segments, edges_ns, strict=True)
    ]
    slowest_ns: Int64s = np.stack(per_rank).max(axis=0)
    return slowest_ns


def _first_remembered(tables: Sequence[RankTable], edges_ns: Int64s) -> int:
    """The first step in which all arrivals are known: the flight recorder keeps only the latest."""
    first = 0
    for table, edges in zip(tables, edges_ns, strict=True):
        arrivals = table.rows_of_any_thread(Kind.ARRIVAL)
        if not runs_ahead(table) and any(first_of > _FIRST_SEQUENCES for first_of in _first_sequences(table, arrivals)):
            first = max(first, int(np.searchsorted(edges, table.start_ns[arrivals].min())))
    return first


def _first_sequences(table: RankTable, arrivals: NDArray[np.intp]) -> list[int]:
    """Of each process group: a small one may still be remembered from the start. Each life of a group begins at 1."""
    groups = np.array([name.partition("@")[2] for name in table.names] or [""])
    groups_of = groups[np.minimum(table.name_id[arrivals], len(groups) - 1)]
    firsts = [int(table.ref[arrivals[groups_of == group]].min()) for group in np.unique(groups_of)]
    return [first & (1 << LIFE_BITS) - 1 for first in firsts]


def _unprofiled(tables: Sequence[RankTable], numbers: Int64s, first: int) -> tuple[int, int]:
    """The longer stretch, from `first` on, that torch.profiler left alone; all of it when too few steps would remain.

    The step after a profiled window holds the writing of the profile, so it goes, too.
    """
    told = [table.facts.get("profiled_steps") for table in tables]
    windows = [window for window in told if isinstance(window, list) and len(window) == 2]
    if not windows:
        return first, len(numbers)
    begin = int(np.searchsorted(numbers, min(int(window[0]) for window in windows)))
    end = int(np.searchsorted(numbers, max(int(window[1]) for window in windows) + 2))
    longer = max((max(first, end), len(numbers)), (first, begin), key=lambda stretch: stretch[1] - stretch[0])
    return longer if longer[1] - longer[0] >= _FEWEST_STEPS else (first, len(numbers))


def _cut_rank(table: RankTable, segments: Segments, steps: Int64s, edges_ns: Int64s) -> Int64s:
    host_ns = cut(segments, edges_ns)
    # without a backward nothing marks where computing ends on the device: its events tell of copies alone
    if not runs_ahead(table) or computes_unseen(table):
        return host_ns
    return on_device(host_ns, device_ns(table, steps))


def _is_split_withheld(phase_ns: Int64s, skew_ns: float | None) -> bool:
    """Whether clocks disagree by more than the waiting they would show."""
    if skew_ns == 0.0:
        return False
    wait_ns = phase_ns[:, :, PHASE["wait"]]
    is_exposed = bool(wait_ns.any() or phase_ns[:, :, PHASE["transfer"]].any())
    return is_exposed and (skew_ns is None or skew_ns > float(wait_ns.mean(axis=1).max()))
