"""Tells a device that works from one that waits for its host's next launch, by holding it back before a phase.

Between two events a device may have stood still again and again: small kernels are done before the host has launched
the next. Where it is held back until the host has launched a whole phase, the time between the phase's events is work
alone. It costs nothing where the device would have waited anyway, and is done only where it was seen to have run dry at
the end of phases. Not for work without gaps: a queue holds about a thousand launches, and one that is fuller makes the
host wait, so that a long phase of small kernels is still found to take longer than it does.
"""

from types import ModuleType
from typing import Any

PHASES = ("forward", "backward", "optimizer")
NUM_FIRST = 9
"""Steps with one phase each that are looked at as soon as the device is seen to run dry."""
_DRY_SHARE = 1 / 3
_NUM_REMEMBERED = 12
"""Ends of phases, of which so large a share must find the device dry."""
_LONGEST_NS = 20_000_000
_MARGIN = 1.5
"""Of what the host took for the phase before."""
_CYCLES_PER_NS = 2
"""At least as many as any GPU of NVIDIA has; a slower clock holds it back for longer."""


class HeldBack:
    """Which phase comes next, and how long its device must wait for it."""

    def __init__(self, torch: ModuleType) -> None:
        # AMD's clock counts otherwise
        is_nvidia = getattr(getattr(torch, "version", None), "cuda", None) is not None
        self._spin: Any = getattr(torch.cuda, "_sleep", None) if is_nvidia else None
        self._found_dry: list[bool] = []
        self._launched_ns = dict.fromkeys(PHASES, 0)
        self._after: dict[str, set[str]] = {phase: set() for phase in PHASES}
        """What ended where each phase began."""
        self._num_held = 0

    @property
    def is_worth_while(self) -> bool:
        return self._spin is not None and sum(self._found_dry) >= _DRY_SHARE * max(len(self._found_dry), len(PHASES))

    @property
    def is_first_look(self) -> bool:
        return self._num_held < NUM_FIRST

    def saw(self, phase: str, *, after: set[str], launched_ns: int, is_dry: bool) -> None:
        """A phase that nothing held back: how long the host took for it, and whether the device had more to do."""
        self._after[phase] |= after
        self._launched_ns[phase] = launched_ns
        self._found_dry = [*self._found_dry[1 - _NUM_REMEMBERED :], is_dry]

    def next_phase(self) -> str:
        self._num_held += 1
        return PHASES[(self._num_held - 1) % len(PHASES)]

    def hold_for(self, phase: str, *, after: str) -> int:
        """On the current stream, until the host has launched the phase, where it may begin now; for how long."""
        if after not in self._after[phase]:
            return 0
        length_ns = min(int(_MARGIN * self._launched_ns[phase]), _LONGEST_NS)
        self._spin(length_ns * _CYCLES_PER_NS)
        return length_ns
