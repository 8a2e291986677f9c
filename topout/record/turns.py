"""Where one step of the job ends when several take turns stepping: the optimizers of a GAN, or its models.

The one that steps first leads: a step of the job ends when the leader has stepped, and the others' steps lie inside. A
leader that falls silent, or is gone, hands over to the one that goes on.
"""

from topout.schema.event import NOT_GIVEN

_SILENT_AFTER = 8
"""So many steps of others in a row, and the leader counts as finished."""


class RehearsalOver(SystemExit):
    """Ends a script after `--steps`; an exit, not an error, so that `except Exception` lets it pass."""


class StepCounter:
    """Who leads, and what has stepped since the leader last did."""

    def __init__(self) -> None:
        self.leader = NOT_GIVEN
        self.since_leader: list[int] = []
        self.expected: frozenset[int] = frozenset()
        """Those that stepped in the last full turn."""

    def stepped(self, number: int) -> bool:
        """True when this ends a step of the job."""
        if number == self.leader and not self.since_leader:  # the only one there is, nearly always
            self.expected = frozenset()
            return True
        if self.leader == NOT_GIVEN or len(self.since_leader) >= _SILENT_AFTER:
            self.leader = number
        if number == self.leader:
            self.expected = frozenset(self.since_leader)
            self.since_leader = []
            return True
        self.since_leader.append(number)
        return False

    @property
    def is_turn_complete(self) -> bool:
        """Every one of the last turn has stepped again: a good moment to end a rehearsal."""
        return self.expected <= {self.leader, *self.since_leader}
