"""Tells a device that works from one that waits for its host's next launch, by holding it back before a phase.

Between two events a device may have stood still again and again: small kernels are done before the host has launched
the next. Where it is held back until the host has launched a whole phase, the time between the phase's events is work
alone. It costs nothing where the device would have waited anyway, and is done again and again where it was seen to have
run dry at the ends of phases. Elsewhere it is done in a few steps alone, the same on all ranks: a device that waits for
small kernels at the beginning of a phase may end it with a large one. Not for work without gaps: a queue holds about a
thousand launches, and one that is fuller makes the host wait, so that a long phase of small kernels is still found to
take longer than it does.
"""

import sys
from types import ModuleType
from typing import Any

from topout.record.clock import now_ns

PHASES = ("forward", "backward", "optimizer")
NUM_TOLD, NUM_TRIED = 3, 6
"""Steps for each phase, those in which it was queued whole and all, as soon as the device is seen to run dry, or steps
have settled."""
_SETTLED_STEP = 40
_NUM_BESIDE = 3
"""Steps before it in which nothing is held back, to compare with."""
_FIRST_STEP_OF_MANY = 60
"""Among several ranks, whose groups of gradients are chosen by the length of steps before that."""
_DRY_SHARE = 0.4
_NUM_REMEMBERED = 12
"""Ends of phases, of which so large a share must find the device dry: a loop may wait for it at one of them."""
_SHORTEST_NS, _LONGEST_NS = 200_000, 20_000_000
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
        self._first_step, self._settled_step = (_FIRST_STEP_OF_MANY,) * 2 if world_size > 1 else (0, _SETTLED_STEP)
        self._found_dry: list[bool] = []
        self._launched_ns = dict.fromkeys(PHASES, 0)
        self._places: dict[str, set[Place]] = {phase: set() for phase in PHASES}
        self._num_tried = dict.fromkeys(PHASES, 0)
        self._num_told = dict.fromkeys(PHASES, 0)
        self._phase = ""
        """That this step is for."""
        self._held_ns = 0
        """In the step that it is held back in."""
        self._held_until_ns = 0
        self._again_ns = 0

    @property
    def _is_first_look(self) -> bool:
        return any(self._num_told[phase] < NUM_TOLD and self._num_tried[phase] < NUM_TRIED for phase in self._known())

    def next_wanted(self, step: int) -> int:
        """From this step on, the first that must be followed; a number beyond all steps where none must be."""
        if self._spin is None or not self._is_first_look:
            return sys.maxsize
        return step if self.is_due(step) else max(step, self._settled_step - _NUM_BESIDE)

    def is_due(self, step: int) -> bool:
        """Whether the device may be held back in this step."""
        if self._spin is None or not self._known():
            return False
        is_dry = sum(self._found_dry) > _DRY_SHARE * max(len(self._found_dry), len(PHASES))
        if self._is_first_look:
            return step >= (self._first_step if is_dry else self._settled_step)
        return is_dry and now_ns() >= self._again_ns

    def saw(self, phase: str, *, place: Place, launched_ns: int, is_dry: bool) -> None:
        """A phase that nothing held back: where it began, how long the host took for it, and what is left to do."""
        self._places[phase].add(place)
        self._launched_ns[phase] = launched_ns
        self._found_dry = [*self._found_dry[1 - _NUM_REMEMBERED :], is_dry]

    def next_phase(self) -> str:
        """For a step that begins."""
        known = self._known()
        self._held_ns = 0
        self._phase = known[(sum(self._num_tried.values()) + 1) % len(known)]
        self._num_tried[self._phase] += 1
        return self._phase

    def step_ended(self, *, is_spoiled: bool) -> None:
        """One that the device was to be held back in, whether it was or not."""
        self._num_told[self._phase] += not is_spoiled
        self._again_ns = now_ns() + round(max(self._held_ns, _LEAST_COST_NS) / _LARGEST_SHARE)

    def _known(self) -> list[str]:
        return [phase for phase in PHASES if self._places[phase]]

    def begins_at(self, phase: str, place: Place) -> bool:
        return place in self._places[phase]

    def hold_for(self, phase: str) -> None:
        """On the current stream, until the host has launched the phase."""
        length_ns = min(max(int(_MARGIN * self._launched_ns[phase]), _SHORTEST_NS), _LONGEST_NS)
        self._spin(length_ns * _CYCLES_PER_NS)
        self._held_ns += length_ns
        self._held_until_ns = now_ns() + length_ns

    def is_over(self, at_ns: int) -> bool:
        """Whether the device may have gone on before the host got there: it waited for the device, or was slow."""
        return at_ns > self._held_until_ns


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
