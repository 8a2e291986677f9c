"""Steps of loops that no optimizer of torch.optim ends: told by backward, until something better tells them.

Before the first optimizer step nobody knows whether a backward ends a step or is one of many whose gradients add up.
So the first ones are only remembered. When so many have come without an optimizer that there is probably none, or the
script has ended without one, they are written as steps under a name of their own. Should an optimizer step after all,
steps are numbered anew, as if there had been none, and a reader leaves out those of that name.

Not for loops that use `torch.autograd.grad` or `torch.func`: they call no backward.
"""

import sys
from collections.abc import Callable
from typing import Any

from topout.record.recorder import Recorder
from topout.record.row_names import BY_BACKWARD
from topout.schema.event import Kind

NUM_BACKWARDS_FIRST = 16
"""So many backward calls without an optimizer's step, and there is probably none. Gradients of more may add up before
the first one; it then puts right what was begun here."""


class BackwardSteps:
    """Counts the backward calls of one rank while nothing else has ended a step."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._code = recorder.code(Kind.STEP, BY_BACKWARD)
        self._ends_ns: list[int] = []
        self._begun_ns = 0
        self._counted_flops_at = recorder.count_flops_at
        self._is_counting = False
        self._look: Callable[[], bool] | None = None
        recorder.at_finish.insert(0, self.settle)

    def ended(self, end_ns: int) -> None:
        """A backward that the script called is over, on the main thread."""
        if self._is_counting:
            if self._look is not None and not self._recorder.guard(self._look):
                self._look = None
            self._recorder.close_step(self._code, end_ns)
            return
        self._ends_ns.append(end_ns)
        if len(self._ends_ns) == NUM_BACKWARDS_FIRST:
            self._begin()
            self._recorder.close_step(self._code, end_ns)
            self._recorder.guard(_note_lonely_ranks, self._recorder)

    def watch(self, look: Callable[[], bool]) -> None:
        """Called after each backward from now on, until it says that there is nothing more to see."""
        if self._is_counting and self._look is None:
            self._look = look

    def give_way(self) -> None:
        """Somebody else ends steps: these were none."""
        recorder = self._recorder
        recorder.backwards = None
        if self._is_counting:
            recorder.number_anew(self._begun_ns)
            recorder.count_flops_at = self._counted_flops_at
            recorder.fact(gradients_of=None)

    def settle(self) -> None:
        """The script is over, and nothing else ended a step; one that failed may have been on the way to it."""
        recorder = self._recorder
        if recorder.backwards is not self:
            return
        if not self._is_counting and self._ends_ns and recorder.exit_code == 0:
            last_ns = self._ends_ns[-1]
            self._begin()
            recorder.close_step(self._code, last_ns, is_past=True)
        if recorder.settings.steps is not None:
            recorder.note(
                f"--steps {recorder.settings.steps}: no step of torch.optim was seen, and backward() alone ends no "
                "run, since gradients of many may add up; call topout.step() at the end of each step"
            )
        if recorder.settings.profile is not None and recorder.settings.profile[0] < NUM_BACKWARDS_FIRST:
            recorder.note(
                f"--profile: steps are told by backward() here, and counted after the first {NUM_BACKWARDS_FIRST}; "
                "choose a later window"
            )

    def _begin(self) -> None:
        """Writes all steps but the last."""
        recorder = self._recorder
        self._is_counting = True
        self._begun_ns = recorder.step_start_ns
        feeding: Any = recorder.feeding
        recorder.fact(**getattr(feeding, "_topout_facts", {}))
        for end_ns in self._ends_ns[:-1]:
            recorder.close_step(self._code, end_ns, is_past=True)
        recorder.count_flops_at = len(self._ends_ns)
        self._ends_ns = []


def _note_lonely_ranks(recorder: Recorder) -> None:
    """With an optimizer it would be an error; without one, ranks may well share out what is no training."""
    distributed: Any = sys.modules.get("torch.distributed")
    is_joined = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if recorder.settings.world_size > 1 and not is_joined:
        recorder.note(
            f"the script made no process group: if it trains, {recorder.settings.world_size} ranks do so alone, "
            "each with its own parameters"
        )
