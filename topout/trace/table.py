"""One rank's recording as columns: what every analysis starts from.

Rows are ordered by their start. Counters stand apart, because they are samples of something and not stretches of
time.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topout.record.row_names import AWAITED, LAUNCHED
from topout.schema.event import Flag, Kind

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Counter:
    """A sampled quantity."""

    times_ns: Int64s
    values: Int64s


@dataclass(frozen=True, kw_only=True)
class RankTable:
    """Everything one rank left behind; times are on the rank's own clock until `clocks.align` has moved them."""

    rank: int
    host: str
    kind: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    name_id: NDArray[np.int32]
    start_ns: Int64s
    duration_ns: Int64s
    value: Int64s
    ref: Int64s
    names: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, Counter] = field(default_factory=dict)
    is_cut: bool = False
    """The file ends in a torn block: the rank was killed while writing, or is writing now."""
    ended_ns: int | None = None
    """When the script's last line had run; None when it did not come so far."""

    @property
    def end_ns(self) -> Int64s:
        return self.start_ns + self.duration_ns

    def rows(self, *kinds: Kind) -> NDArray[np.intp]:
        """Indices of the rows of these kinds on the main thread; what a helper thread did takes no time of the rank."""
        is_main = (self.flags & int(Flag.OFF_MAIN_THREAD)) == 0
        return np.flatnonzero(self._is_of(kinds) & is_main)

    def rows_of_any_thread(self, *kinds: Kind) -> NDArray[np.intp]:
        return np.flatnonzero(self._is_of(kinds))

    def _is_of(self, kinds: tuple[Kind, ...]) -> Bools:
        # one look into a table of 256 is several times faster than np.isin, and this is asked thirty times a rank
        is_wanted = np.zeros(256, dtype=bool)
        is_wanted[[int(kind) for kind in kinds]] = True
        chosen: Bools = is_wanted[self.kind]
        return chosen

    def is_named(self, rows: NDArray[np.intp], part: str) -> Bools:
        """For each of these rows, whether its name has this part."""
        ids = [number for number, name in enumerate(self.names) if part in name]
        return np.isin(self.name_id[rows], ids)

    def name(self, row: int) -> str:
        number = int(self.name_id[row])
        return self.names[number] if number < len(self.names) else ""


KeyNumbers = dict[str, int]
"""Operation and group -> a number that is the same for all ranks; filled as names appear."""
_SEQUENCE_BITS = 40


def collective_keys(
    table: RankTable, rows: NDArray[np.intp], numbers: KeyNumbers, *, is_arrival: bool = False
) -> Int64s:
    """One integer for each collective, equal on all ranks that took part in it; -1 where there is no sequence number.

    What the script called and what the flight recorder saw are counted by different hands: they have keys of their own.
    A launch and the wait for it have the same.
    """
    prefix = "arrival:" if is_arrival else "called:"
    called = [name.replace(LAUNCHED, "").replace(AWAITED, "") for name in table.names or ("",)]
    ids = np.array([numbers.setdefault(prefix + name, len(numbers)) for name in called], dtype=np.int64)
    sequence = table.ref[rows]
    keys = (ids[np.minimum(table.name_id[rows], len(ids) - 1)] << _SEQUENCE_BITS) | np.maximum(sequence, 0)
    return np.where(sequence >= 0, keys, -1)
