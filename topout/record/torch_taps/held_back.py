"""Tells a device that works from one that waits for its host's next launch, by holding it back before a phase.

Between two events a device may have stood still again and again: small kernels are done before the host has launched
the next. Where it is held back until the host has launched a whole phase, the time between the phase's events is work
alone. It costs nothing where the device would have waited anyway, and is done only where it was seen to have run dry at
the ends of phases. Not for work without gaps: a queue holds about a thousand launches, and one that is fuller makes
the host wait, so that a long phase of small kernels is still found to take longer than it does.
"""

from types import ModuleType
from typing import Any

from topout.record.clock import now_ns

PHASES = ("forward", "backward", "optimizer")
NUM_FIRST = 9
"""Steps with one phase each that are looked at as soon as the device is seen to run dry."""
_FIRST_STEP_OF_MANY = 60
"""Among several ranks, whose groups of gradients are chosen by the length of steps before that."""
_DRY_SHARE = 0.4
_NUM_REMEMBERED = 12
"""Ends of phases, of which so large a share must find the device dry: a loop may wait for it at one of them."""
_LONGEST_NS = 20_000_000
"""At once."""
_LEAST_COST_NS = 1_000_000
_LARGEST_SHARE = 0.001
"""Of the time from then on, after the first look."""
_MARGIN = 1.5
"""Of what the host took for the phase before."""
_CYCLES_PER_NS = 2
"""At least as many as any GPU of NVIDIA has; a slower clock holds it back for longer."""

Place = tuple[str, int, int]
"""Where a phase begins: after which one, "" for a step; after which of those in the step; and after how many copies."""


class HeldBack:
    """Which phase comes next, and how long its device must wait for it."""

    def __init__(self, torch: ModuleType, *, world_size: int) -> None:
        # AMD's clock counts otherwise
        is_nvidia = getattr(getattr(torch, "version", None), "cuda", None) is not None
        self._spin: Any = getattr(torch.cuda, "_sleep", None) if is_nvidia else None
        self._first_step = _FIRST_STEP_OF_MANY if world_size > 1 else 0
        self._found_dry: list[bool] = []
        self._launched_ns = dict.fromkeys(PHASES, 0)
        self._places: dict[str, set[Place]] = {phase: set() for phase in PHASES}
        self._num_steps = 0
        self._held_ns = 0
        """In the step that it is held back in."""
        self._again_ns = 0

    @property
    def _is_first_look(self) -> bool:
        return self._num_steps < NUM_FIRST

    def is_looking(self, step: int) -> bool:
        """Whether all steps are wanted from this one on."""
        return self._is_first_look and self.is_due(step)

    def is_due(self, step: int) -> bool:
        """Whether the device may be held back in this step."""
        is_dry = sum(self._found_dry) > _DRY_SHARE * max(len(self._found_dry), len(PHASES))
        is_time = step >= self._first_step if self._is_first_look else now_ns() >= self._again_ns
        return self._spin is not None and is_dry and is_time

    def saw(self, phase: str, *, place: Place, launched_ns: int, is_dry: bool) -> None:
        """A phase that nothing held back: where it began, how long the host took for it, and what is left to do."""
        self._places[phase].add(place)
        self._launched_ns[phase] = launched_ns
        self._found_dry = [*self._found_dry[1 - _NUM_REMEMBERED :], is_dry]

    def next_phase(self) -> str:
        """For a step that begins."""
        known = [phase for phase in PHASES if self._places[phase]]
        self._held_ns = 0
        self._num_steps += 1
        return known[self._num_steps % len(known)]

    def step_ended(self) -> None:
        """One that the device was to be held back in, whether it was or not."""
        self._again_ns = now_ns() + round(max(self._held_ns, _LEAST_COST_NS) / _LARGEST_SHARE)

    def hold_for(self, phase: str, place: Place) -> bool:
        """On the current stream, until the host has launched the phase; False where it does not begin here."""
        if place not in self._places[phase]:
            return False
        length_ns = min(int(_MARGIN * self._launched_ns[phase]), _LONGEST_NS)
        self._spin(length_ns * _CYCLES_PER_NS)
        self._held_ns += length_ns
        return True


class Begun:
    """Where a phase may have begun that has not ended: with the end of the one before, or behind a copy since then."""

    def __init__(self, at_ns: int) -> None:
        self._num_ends: dict[str, int] = {}
        """Of each phase in this step."""
        self.ended("", at_ns)

    def ended(self, phase: str, at_ns: int) -> Place:
        if not phase:
            self._num_ends = {}
        self._num_ends[phase] = self._num_ends.get(phase, 0) + 1
        self._after, self.num_copies, self._since_ns = phase, 0, at_ns
        self._longest: tuple[int, int, int] = (-1, 0, at_ns)
        """Of the stretches between copies: its length, after how many it lies, and where it began."""
        return self._place(0)

    def copy_begins(self, at_ns: int) -> None:
        self._longest = max(self._longest, (at_ns - self._since_ns, self.num_copies, self._since_ns))

    def copied(self, at_ns: int) -> Place:
        self.num_copies += 1
        self._since_ns = at_ns
        return self._place(self.num_copies)

    def place_at(self, end_ns: int) -> tuple[Place, int]:
        """Where most of what the host did for a phase begins that ends now, and when that was."""
        self.copy_begins(end_ns)
        _, num_copies, since_ns = self._longest
        return self._place(num_copies), since_ns

    def _place(self, num_copies: int) -> Place:
        return self._after, self._num_ends[self._after], num_copies
