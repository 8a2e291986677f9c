"""Where one step of the job ends when several take turns stepping: the optimizers of a GAN, or its models.

The one that steps first leads: a step of the job ends when the leader has stepped, and the others' steps lie inside. A
leader that falls silent, or is gone, hands over to the one that goes on.
"""

from topout.schema.event import NOT_GIVEN

_SILENT_AFTER = 8
"""So many steps of one other without the leader, and it counts as finished; any number of others may step once each."""


class RehearsalOver(SystemExit):
    """Ends a script after `--steps`; an exit, not an error, so that `except Exception` lets it pass."""


class StepCounter:
    """Who leads, and what has stepped since the leader last did."""

    def __init__(self) -> None:
        self.leader = NOT_GIVEN
        self.since_leader: dict[int, int] = {}
        """How often each has stepped."""
        self.expected: frozenset[int] = frozenset()
        """Those that stepped in the last full turn."""

    def stepped(self, number: int) -> bool:
        """True when this ends a step of the job."""
        if number == self.leader and not self.since_leader:  # the only one there is, nearly always
            self.expected = frozenset()
            return True
        num_steps = self.since_leader.get(number, 0)
        if self.leader == NOT_GIVEN or num_steps >= _SILENT_AFTER:
            self.leader = number
        if number == self.leader:
            self.expected = frozenset(self.since_leader)
            self.since_leader = {}
            return True
        self.since_leader[number] = num_steps + 1
        return False

    def keep(self, alive: set[int]) -> None:
        """A leader that is gone leads no more, nor does one that short-lived ones have come and gone without."""
        num_steps = sum(steps for number, steps in self.since_leader.items() if number not in alive)
        if self.leader not in alive or num_steps >= _SILENT_AFTER:
            self.leader = NOT_GIVEN

    @property
    def is_turn_complete(self) -> bool:
        """Every one of the last turn has stepped again: a good moment to end a rehearsal."""
        return self.expected <= {self.leader, *self.since_leader}
