"""`--batch`: who took the batch that was asked for, and the end of a run in which nobody did.

An order that is not carried out must be said: a run with another batch than was asked for would be taken for a run with
it. So the first step ends the job where the loader that feeds training has another one.
"""

from __future__ import annotations

from topout.record.recorder import Recorder
from topout.record.turns import RehearsalOver

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_USAGE = 2
_MOST_NAMED = 4


class SetBatch:
    """The batch of a rank that was asked for, and the loaders that were made since."""

    def __init__(self, size: int, recorder: Recorder) -> None:
        self.size = size
        self._recorder = recorder
        self._taken: list[str] = []
        self._kept: list[str] = []
        self._is_checked = False

    def took(self, where: str) -> None:
        if where not in self._taken:
            self._taken.append(where)
            self._recorder.fact(batch_asked=self.size, batch_taken_by=list(self._taken))

    def kept(self, where: str, why: str) -> None:
        text = f"the DataLoader at {where} {why}"
        if text not in self._kept and len(self._kept) < _MOST_NAMED:
            self._kept.append(text)

    def check(self, number: int) -> None:
        """After the first step, on all ranks alike; other steps cost a comparison."""
        if number != 0:
            return
        self._is_checked = True
        fed = getattr(self._recorder.feeding, "_topout_facts", {}).get("batch_size")
        if fed == self.size or (fed is None and self._taken):
            return
        self._refuse(fed)

    def look_back(self) -> None:
        if not self._is_checked:
            self._recorder.note(f"--batch {self.size}: there was no optimizer step, so whether it was set is not known")

    def _refuse(self, fed: Any) -> None:
        reasons = "; ".join(self._kept) or "no DataLoader of torch was made"
        has = f"batches of {fed}" if isinstance(fed, int) else "batches that topout cannot set"
        text = (
            f"--batch {self.size} was not taken: training is fed {has}.\n"
            f"  why  {reasons}\n"
            "  do   set it with the script's own option; topout scale: --batch-arg --batch-size"
        )
        self._recorder.tell("failure", text=text)
        raise RehearsalOver(_USAGE)


def install(recorder: Recorder, size: int) -> None:
    recorder.set_batch = SetBatch(size, recorder)
    recorder.fact(batch_asked=size)
    recorder.at_step_end.append(recorder.set_batch.check)
    recorder.at_finish.append(recorder.set_batch.look_back)
